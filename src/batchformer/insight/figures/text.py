"""Write numbers for readers: signs, two decimals, powers of ten, intervals in brackets."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from numpy import format_float_positional

from batchformer.insight.intervals import Summary

_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
NO_BREAK = "\N{NO-BREAK SPACE}"


def number(value: float, decimals: int = 2) -> str:
    """Write a number with fixed decimals; a rounded zero has no sign, and NaN becomes "".

    >>> number(-0.004), number(71.256), number(math.nan)
    ('0.00', '71.26', '')
    """
    if math.isnan(value):
        return ""
    text = f"{value:.{decimals}f}"
    return text.lstrip("-") if float(text) == 0 else text


def signed(value: float, decimals: int = 2) -> str:
    """Write a number with its sign, as for differences.

    >>> signed(0.5), signed(-1.25), signed(-0.001)
    ('+0.50', '-1.25', '0.00')
    """
    text = number(value, decimals)
    return f"+{text}" if text and float(text) > 0 else text


def interval(
    low: float | None, high: float | None, *, sign: bool = False, decimals: int = 2
) -> str:
    """``[low, high]``; "" if an end is None."""
    if low is None or high is None:
        return ""
    write = signed if sign else number
    return f"[{write(low, decimals)}, {write(high, decimals)}]"


def mean_with_interval(found: Summary | None, decimals: int = 2) -> str:
    """``mean [low, high]``, without brackets where there is no interval; "" for None."""
    if found is None:
        return ""
    bounds = interval(found.low, found.high, decimals=decimals)
    return f"{number(found.mean, decimals)} {bounds}".strip()


def value_range(values: Sequence[float], write: Callable[[float], str]) -> str:
    """The lowest to the highest value as text, or only one if both read the same.

    >>> value_range([3, 1200], "{:,}".format), value_range([2.0, 2.0], number)
    ('3 to 1,200', '2.00')
    """
    low, high = write(min(values)), write(max(values))
    return low if low == high else f"{low} to {high}"


def seeds(n: int) -> str:
    """The number of seeds in words.

    >>> seeds(1), seeds(3)
    ('1 seed', '3 seeds')
    """
    return f"{n} seed" + ("" if n == 1 else "s")


def over_seeds(counts: Mapping[str, int]) -> str:
    """The number of seeds behind a mean, listed by arm if arms differ.

    >>> over_seeds({"a": 5, "b": 5}), over_seeds({"a": 4, "b": 3})
    ('5 seeds', 'seeds (a 4, b 3)')
    """
    if len(set(counts.values())) == 1:
        return seeds(next(iter(counts.values())))
    return f"seeds ({', '.join(f'{arm} {n}' for arm, n in counts.items())})"


def power_of_ten(value: float) -> str:
    """The nearest power of ten in Unicode; matplotlib's exponents are too small on a phone.

    >>> power_of_ten(0.0011)
    '10⁻³'
    """
    return f"10{str(round(math.log10(value))).translate(_RAISED)}"


def in_powers(value: float) -> str:
    """A number with two digits and a power of ten, without line breaks.

    >>> in_powers(3.54e-7).replace(NO_BREAK, " ")
    '3.5 × 10⁻⁷'
    """
    digits, power = f"{value:.1e}".split("e")
    return f"{digits}{NO_BREAK}×{NO_BREAK}{power_of_ten(10.0 ** int(power))}"


def in_full(value: float) -> str:
    """A number with one significant digit and no exponent.

    >>> in_full(4.4e-5), in_full(27.0), len(in_full(1e-120))
    ('0.00004', '30', 122)
    """
    return format_float_positional(float(f"{value:.1g}"), trim="-")
