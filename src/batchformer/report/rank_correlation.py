"""Rank correlation of two values of classes, with what seeds and what classes leave open.

A third value can be held fixed: the partial correlation is that of what is left of two rankings
when each has been explained by the third as far as a line can.
"""

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
"""With fewer a bootstrap over classes says nothing, nor does a correlation with a third fixed."""

LEAST_LEFT = 1e-12
"""Of a ranking's variance, that the ranking held fixed leaves; less is rounding."""


@dataclass(frozen=True)
class Correlation:
    """Spearman's rank correlation of a value of classes with another; what is not known is None.

    Args:
        rho: mean over seeds; of training counts negative where rarer classes have larger values.
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


def correlation(
    x: NDArray[Any], values: NDArray[Any], held: NDArray[Any] | None = None
) -> Correlation:
    """Of what all seeds share, (K,), or of every seed's own, (S, K), with values (S, K).

    Args:
        x: training counts, say.
        values: NaN for a class that was not measured.
        held: (S, K) to be held fixed.
    """
    sides = [np.broadcast_to(x, values.shape), values, *([] if held is None else [held])]
    each = [_of_known(*rows) for rows in zip(*sides, strict=True)]
    by_seed = tuple(rho for rho in each if np.isfinite(rho))
    if not by_seed:
        return Correlation(None, (), None, None)
    found = summary(by_seed)
    over_seeds = None
    if found.low is not None and found.high is not None:
        over_seeds = max(found.low, -1.0), min(found.high, 1.0)  # it cannot lie beyond
    over_classes = _bootstrap(*map(mean_of_known, sides))
    return Correlation(found.mean, by_seed, over_seeds, over_classes)


def rank_correlation(x: NDArray[Any], y: NDArray[Any]) -> NDArray[Any]:
    """Spearman's, of every row of (..., K) and (..., K); NaN where one side is constant."""
    from scipy.stats import rankdata

    left, right = (rankdata(side, axis=-1) - (side.shape[-1] + 1) / 2 for side in (x, y))
    norm = np.sqrt((left**2).sum(-1) * (right**2).sum(-1))
    return per((left * right).sum(-1), norm)


def partial_rank_correlation(x: NDArray[Any], y: NDArray[Any], z: NDArray[Any]) -> NDArray[Any]:
    """Of rows of x and y, (..., K) each, with z held fixed; NaN where z leaves nothing of one."""
    xy, xz, yz = rank_correlation(x, y), rank_correlation(x, z), rank_correlation(y, z)
    left = np.minimum(1 - xz**2, 1 - yz**2)
    norm = np.where(left > LEAST_LEFT, np.sqrt(np.abs((1 - xz**2) * (1 - yz**2))), 0.0)
    found: NDArray[Any] = np.clip(per(xy - xz * yz, norm), -1.0, 1.0)
    return found


def mean_of_known(values: NDArray[Any]) -> NDArray[Any]:
    """Mean over the first axis of what is not NaN; NaN where nothing is."""
    known = np.isfinite(values)
    return per(np.where(known, values, 0.0).sum(0), known.sum(0))


def _of(*sides: NDArray[Any]) -> NDArray[Any]:
    return partial_rank_correlation(*sides) if len(sides) > 2 else rank_correlation(*sides)


def _known(*sides: NDArray[Any]) -> list[NDArray[Any]]:
    """The classes of which every side is known."""
    known = np.isfinite(sides).all(0)
    return [side[known] for side in sides]


def _of_known(*sides: NDArray[Any]) -> float:
    fewest = FEWEST_CLASSES if len(sides) > 2 else 2
    kept = _known(*sides)
    return float(_of(*kept)) if len(kept[0]) >= fewest else np.nan


def _bootstrap(*sides: NDArray[Any], seed: int = 0) -> Interval | None:
    kept = _known(*sides)
    classes = len(kept[0])
    if classes < FEWEST_CLASSES:
        return None
    generator = np.random.default_rng(seed)
    drawn = []
    for _ in range(RESAMPLES // AT_ONCE):
        rows = generator.integers(classes, size=(AT_ONCE, classes))
        drawn.append(_of(*(side[rows] for side in kept)))
    rho = np.concatenate(drawn)
    rho = rho[np.isfinite(rho)]
    if not rho.size:
        return None
    low, high = np.quantile(rho, [0.025, 0.975])
    return float(low), float(high)
