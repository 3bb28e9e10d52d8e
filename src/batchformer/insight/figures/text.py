"""Numbers as they are read: signs, two decimals, intervals in brackets."""

from __future__ import annotations

from batchformer.insight.intervals import Summary


def number(value: float, decimals: int = 2) -> str:
    """Fixed decimals; what rounds to zero has no sign.

    >>> number(-0.004), number(71.256)
    ('0.00', '71.26')
    """
    text = f"{value:.{decimals}f}"
    return text.lstrip("-") if float(text) == 0 else text


def signed(value: float, decimals: int = 2) -> str:
    """With a sign, as differences are written.

    >>> signed(0.5), signed(-1.25), signed(-0.001)
    ('+0.50', '-1.25', '0.00')
    """
    text = number(value, decimals)
    return text if float(text) <= 0 else f"+{text}"


def interval(
    low: float | None, high: float | None, *, sign: bool = False, decimals: int = 2
) -> str:
    """``[low, high]``, or nothing where there is none."""
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


def seeds(n: int) -> str:
    """How many, in words.

    >>> seeds(1), seeds(3)
    ('1 seed', '3 seeds')
    """
    return f"{n} seed" + ("" if n == 1 else "s")
