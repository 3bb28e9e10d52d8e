"""Rank correlation of two values of classes, with what seeds and what classes leave open."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchformer.metrics.intervals import summary
from batchformer.report.kept import per

Interval = tuple[float, float]

RESAMPLES, AT_ONCE = 2000, 200
"""Draws of the bootstrap over classes, and how many of them are ranked together."""

FEWEST_CLASSES = 5
"""With fewer a bootstrap over classes says nothing."""


@dataclass(frozen=True)
class Correlation:
    """Spearman's rank correlation of training count with a value; what is not known is None.

    Args:
        rho: mean over seeds; negative where rarer classes have larger values.
        by_seed: one value each.
        over_seeds: 95% t interval, within -1 and 1.
        over_classes: 95% bootstrap interval over classes, of the mean over seeds.
    """

    rho: float | None
    by_seed: tuple[float, ...]
    over_seeds: Interval | None
    over_classes: Interval | None

    @property
    def holds(self) -> bool | None:
        """Whether every interval lies below 0 (True), or above (False); None for neither."""
        known = [one for one in (self.over_seeds, self.over_classes) if one is not None]
        if known and all(high < 0 for _, high in known):
            return True
        return False if known and all(low > 0 for low, _ in known) else None


def correlation(counts: NDArray[Any], values: NDArray[Any]) -> Correlation:
    """Of counts (K,) with the values of every seed (S, K)."""
    each = [_known_correlation(counts, row) for row in values]
    by_seed = tuple(rho for rho in each if np.isfinite(rho))
    if not by_seed:
        return Correlation(None, (), None, None)
    found = summary(by_seed)
    over_seeds = None
    if found.low is not None and found.high is not None:
        over_seeds = max(found.low, -1.0), min(found.high, 1.0)  # it cannot lie beyond
    return Correlation(found.mean, by_seed, over_seeds, _bootstrap(counts, mean_of_known(values)))


def rank_correlation(x: NDArray[Any], y: NDArray[Any]) -> NDArray[Any]:
    """Spearman's, of every row of (..., K) and (..., K); NaN where one side is constant."""
    from scipy.stats import rankdata

    left, right = (rankdata(side, axis=-1) - (side.shape[-1] + 1) / 2 for side in (x, y))
    norm = np.sqrt((left**2).sum(-1) * (right**2).sum(-1))
    return per((left * right).sum(-1), norm)


def mean_of_known(values: NDArray[Any]) -> NDArray[Any]:
    """Mean over the first axis of what is not NaN; NaN where nothing is."""
    known = np.isfinite(values)
    return per(np.where(known, values, 0.0).sum(0), known.sum(0))


def _known_correlation(counts: NDArray[Any], values: NDArray[Any]) -> float:
    known = np.isfinite(values)
    return float(rank_correlation(counts[known], values[known])) if known.sum() > 1 else np.nan


def _bootstrap(counts: NDArray[Any], values: NDArray[Any], seed: int = 0) -> Interval | None:
    known = np.isfinite(values)
    counts, values = counts[known], values[known]
    if len(counts) < FEWEST_CLASSES:
        return None
    generator = np.random.default_rng(seed)
    drawn = []
    for _ in range(RESAMPLES // AT_ONCE):
        rows = generator.integers(len(counts), size=(AT_ONCE, len(counts)))
        drawn.append(rank_correlation(counts[rows], values[rows]))
    rho = np.concatenate(drawn)
    rho = rho[np.isfinite(rho)]
    if not rho.size:
        return None
    low, high = np.quantile(rho, [0.025, 0.975])
    return float(low), float(high)
