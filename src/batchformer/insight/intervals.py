"""The mean over a few seeds with its Student t interval, and what that needs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

from batchformer.insight.optional import extra

LEVEL = 0.95
FEWEST_SEEDS = 3
"""With two values the t interval is 9 standard deviations to each side: it says nothing."""


@dataclass(frozen=True, slots=True)
class Summary:
    """Mean over ``n`` seeds with its 95% t interval; what cannot be known is None."""

    mean: float
    sd: float | None
    low: float | None
    high: float | None
    n: int
    values: tuple[float, ...]


def summary(values: Sequence[float], within: tuple[float, float] | None = None) -> Summary:
    """Mean, standard deviation (n - 1) and 95% Student t interval of one value per seed.

    One seed has no spread and no interval; two have a spread and no interval.

    Args:
        within: the least and the greatest value that are possible. The interval is cut off there,
            since the true mean cannot lie beyond.

    >>> summary([61.0, 62.0, 63.0])  # doctest: +ELLIPSIS
    Summary(mean=62.0, sd=1.0, low=59.5..., high=64.4..., n=3, values=(61.0, 62.0, 63.0))
    >>> summary([1.0, 2.0, 6.0], within=(0.0, 100.0)).low
    0.0
    """
    kept = finite_values(values, "values")
    n, mean = len(kept), statistics.mean(kept)
    # The standard library sums exactly, so equal values have sd 0 and not 1e-17.
    sd = statistics.stdev(kept) if n > 1 else None
    if sd is None or n < FEWEST_SEEDS:
        return Summary(mean, sd, None, None, n, kept)
    half = float(statistics_library().t.ppf((1 + LEVEL) / 2, n - 1)) * sd / math.sqrt(n)
    least, most = within or (-math.inf, math.inf)
    # A mean outside these limits still lies in its own interval.
    low, high = min(max(mean - half, least), mean), max(min(mean + half, most), mean)
    return Summary(mean, sd, low, high, n, kept)


def summary_of_known(values: Sequence[float], within: tuple[float, float]) -> Summary | None:
    """The summary of the finite values; None if no value is finite."""
    known = [float(value) for value in values if math.isfinite(value)]
    return summary(known, within) if known else None


def finite_values(values: Sequence[float], name: str) -> tuple[float, ...]:
    """The values of seeds as a tuple; ValueError if there are none, or one is not finite."""
    kept = tuple(map(float, values))
    if not kept:
        raise ValueError(f"{name} is empty: give one value per seed")
    for i, value in enumerate(kept):
        if not math.isfinite(value):
            raise ValueError(
                f"{name}[{i}] is {value}: that seed diverged or was not measured. Report it by "
                f"name; a mean over the others alone would hide it"
            )
    return kept


def statistics_library() -> ModuleType:
    """Import ``scipy.stats``; if it is missing, the error says what to install."""
    with extra("lab"):
        from scipy import stats
    module: ModuleType = stats
    return module
