"""A measured number and how far its repetitions lie apart."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Spread:
    """The median of several rounds, and the quartiles between which half of them lie."""

    median: float
    low: float
    high: float
    rounds: int

    def through(self, change: Callable[[float], float]) -> Spread:
        """In another unit: a monotonous change of the number, which may exchange the quartiles."""
        low, high = sorted((change(self.low), change(self.high)))
        return Spread(change(self.median), low, high, self.rounds)


def spread_of(values: Sequence[float]) -> Spread:
    """Median and quartiles.

    >>> spread_of([1.0, 2.0, 3.0, 4.0, 9.0])
    Spread(median=3.0, low=2.0, high=4.0, rounds=5)
    """
    if len(values) < 2:
        return Spread(values[0], values[0], values[0], 1)
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(median, low, high, len(values))


def median_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """An interval for the median of what the values are drawn from, whatever its distribution.

    The k-th smallest and the k-th largest value, with the largest k that keeps the confidence; all
    values where there are too few for any.

    >>> median_interval([float(i) for i in range(1, 21)])
    (6.0, 15.0)
    """
    ordered, n = sorted(values), len(values)
    outside, k = 0.0, 0
    while k < n // 2:
        outside += 2 * math.comb(n, k) / 2**n
        if outside > 1 - confidence:
            break
        k += 1
    k = max(k, 1)
    return ordered[k - 1], ordered[n - k]
