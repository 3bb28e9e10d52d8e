"""One effect from several comparisons that are each too small to show it.

A comparison of three seeds cannot see a quarter of a point; seven of them can. Each set-up (a
recipe, compared on its own seeds) counts once. Two spreads bound what its mean can say: that of the
seeds inside the set-ups, and that of the set-ups' effects among themselves. The first speaks of
these set-ups, the second of others like them; a small number of either can be too small by chance,
so the wider interval is given.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from batchformer.lab.metrics.intervals import LEVEL, ROUNDING, statistics_library

FEWEST_OF_A_SETUP = 2
"""Paired seeds of a set-up: one has no spread."""

Spread = Literal["seeds", "set-ups"]


@dataclass(frozen=True, slots=True)
class Pooled:
    """Mean difference over ``setups``, each counted once, with the wider 95% t interval.

    Args:
        difference: percent points.
        low, high: of the interval; None where the same difference is in every seed of every
            set-up, which on small test sets is a coincidence and no certainty.
        p_value: the larger of the two, which is below 0.05 where the interval excludes 0; or None.
        spread: which of the two it comes from.
        alike: p-value of the hypothesis that the effect is the same in every set-up (one-way
            analysis of variance); small where set-ups differ by more than their seeds do.
        setups: how many.
        seeds: paired seeds in all.
    """

    difference: float
    low: float | None
    high: float | None
    p_value: float | None
    spread: Spread
    alike: float
    setups: int
    seeds: int


def pooled(differences: Sequence[Sequence[float]], scale: float = 0.0) -> Pooled:
    """The mean effect over independent set-ups.

    Over seeds, the mean of the set-ups' means has the variance ``sum(s_i^2 / n_i) / K^2``, with
    Satterthwaite's degrees of freedom, since set-ups need not be equally noisy. Over set-ups it is
    one value each, and Student's t has K - 1 degrees of freedom.

    Args:
        differences: for each set-up, other - baseline of each of its paired seeds.
        scale: the largest value that was subtracted, by which rounding is told from spread.

    >>> found = pooled([[0.1, 0.4, 0.3], [0.5, -0.1], [0.2, 0.6, 0.2]])
    >>> f"{found.difference:+.2f} [{found.low:+.2f}, {found.high:+.2f}] by {found.spread}"
    '+0.27 [-0.35, +0.89] by seeds'
    """
    if len(differences) < 2:
        raise ValueError(f"pooled needs two set-ups or more, got {len(differences)}")
    for i, values in enumerate(differences):
        if len(values) < FEWEST_OF_A_SETUP or not all(map(math.isfinite, values)):
            raise ValueError(
                f"differences[{i}] is {list(values)}: a set-up needs {FEWEST_OF_A_SETUP} paired "
                f"seeds or more, all finite"
            )
    means = [statistics.mean(values) for values in differences]
    mean = statistics.mean(means)
    errors = [statistics.variance(values) / len(values) for values in differences]
    sources = {
        "seeds": (math.sqrt(sum(errors)) / len(means), _satterthwaite(errors, differences)),
        "set-ups": (statistics.stdev(means) / math.sqrt(len(means)), len(means) - 1.0),
    }
    rounding = ROUNDING * scale
    alike, count = _alike(means, differences, rounding), sum(map(len, differences))
    flat = [value for values in differences for value in values]
    if max(flat) - min(flat) <= rounding:
        mean = 0.0 if abs(mean) <= rounding else mean
        limit, p_value = (0.0, 1.0) if mean == 0 else (None, None)
        return Pooled(mean, limit, limit, p_value, "seeds", alike, len(means), count)
    stats = statistics_library()
    reach = {
        name: error * float(stats.t.ppf((1 + LEVEL) / 2, freedom))
        for name, (error, freedom) in sources.items()
    }
    spread: Spread = "seeds" if reach["seeds"] >= reach["set-ups"] else "set-ups"
    # Far from 5% the t of the narrower may have the heavier tails.
    p_values = [
        2 * float(stats.t.sf(abs(mean) / error, freedom))
        for error, freedom in sources.values()
        if error
    ]
    return Pooled(
        mean,
        mean - reach[spread],
        mean + reach[spread],
        max(p_values),
        spread,
        alike,
        len(means),
        count,
    )


def _satterthwaite(errors: Sequence[float], differences: Sequence[Sequence[float]]) -> float:
    """Degrees of freedom of a sum of variances of means, each known from its own few seeds."""
    parts = sum(
        error**2 / (len(values) - 1) for error, values in zip(errors, differences, strict=True)
    )
    return sum(errors) ** 2 / parts if parts else float(sum(map(len, differences)) - len(errors))


def _alike(
    means: Sequence[float], differences: Sequence[Sequence[float]], rounding: float
) -> float:
    """P-value of one effect in every set-up; without any spread inside them it is 0 or 1."""
    if not any(max(values) - min(values) > rounding for values in differences):
        return float(max(means) - min(means) <= rounding)
    return float(statistics_library().f_oneway(*differences).pvalue)
