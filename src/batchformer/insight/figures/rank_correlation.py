"""Rank correlation of two values by class, with intervals over seeds and over classes.

A third value can be held fixed: the partial correlation is that of the residuals of two rankings
after linear regression on the third.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchformer.insight.figures.networks import mean_of_known, safe_divide
from batchformer.insight.intervals import summary

Interval = tuple[float, float]

RESAMPLES, AT_ONCE = 2000, 200
"""Draws of the bootstrap over classes, and how many of them are ranked together."""

FEWEST_CLASSES = 5
"""With fewer classes, neither a bootstrap over them nor a partial correlation says anything."""

FEWEST_OF_PARTIAL = 10
"""With fewer classes, a bootstrap draw has so few different ones that their partial correlation is
-1 or 1: the interval then misses the truth, and at times its own estimate."""

LEAST_LEFT = 1e-12
"""The least part of a ranking's variance that the one held fixed leaves; less is rounding."""


@dataclass(frozen=True)
class Correlation:
    """Spearman's rank correlation of a value of classes with another; what is not known is None."""

    # Mean over seeds; with training counts it is negative if rarer classes have larger values
    rho: float | None
    by_seed: tuple[float, ...]
    over_seeds: Interval | None  # 95% t interval, within -1 and 1
    # 95% bootstrap interval over classes, of the mean over seeds, that is of `rho` itself
    over_classes: Interval | None

    @property
    def is_negative(self) -> bool | None:
        """True if every interval lies below 0, False if every one lies above; else None."""
        known = [one for one in (self.over_seeds, self.over_classes) if one is not None]
        if known and all(high < 0 for _, high in known):
            return True
        return False if known and all(low > 0 for low, _ in known) else None


def correlation(
    x: NDArray[Any], values: NDArray[Any], held: NDArray[Any] | None = None
) -> Correlation:
    """Correlate ``x``, (K,) for all seeds or (S, K), with values (S, K), ``held`` (S, K) fixed.

    NaN stands for a class that was not measured.
    """
    sides = [np.broadcast_to(x, values.shape), values, *([] if held is None else [held])]
    by_seed = tuple(float(rho) for rho in _by_seed(sides) if np.isfinite(rho))
    if not by_seed:
        return Correlation(None, (), None, None)
    found = summary(by_seed, within=(-1.0, 1.0))
    low, high = found.low, found.high
    over_seeds = None if low is None or high is None else (low, high)
    return Correlation(found.mean, by_seed, over_seeds, _bootstrap(sides))


def rank_correlation(*sides: NDArray[Any], times: NDArray[Any] | None = None) -> NDArray[Any]:
    """Spearman's correlation of x and y over K classes, or over B samples of them.

    With a third side, z, it is the partial correlation with z held fixed. NaN where a side is
    constant, or where z explains x or y completely. ``times`` (B, K) says how often each sample has
    each class; the result then is (B,), else ().
    """
    weights = np.ones(sides[0].shape) if times is None else times.astype(np.float64)
    x, y, *held = (_centred_ranks(side, weights) for side in sides)
    xy = _of_ranks(x, y, weights)
    if not held:
        return xy
    xz, yz = (_of_ranks(side, held[0], weights) for side in (x, y))
    left = np.minimum(1 - xz**2, 1 - yz**2)
    norm = np.where(left > LEAST_LEFT, np.sqrt(np.abs((1 - xz**2) * (1 - yz**2))), 0.0)
    found: NDArray[Any] = np.clip(safe_divide(xy - xz * yz, norm), -1.0, 1.0)
    return found


def _of_ranks(left: NDArray[Any], right: NDArray[Any], weights: NDArray[Any]) -> NDArray[Any]:
    weighted = weights * left
    norm = np.sqrt((weighted * left).sum(-1) * (weights * right * right).sum(-1))
    return safe_divide((weighted * right).sum(-1), norm)


def _centred_ranks(values: NDArray[Any], weights: NDArray[Any]) -> NDArray[Any]:
    """Ranks of values (K,) less their mean, in samples that have class k weights[..., k] times.

    Equal values share the mean of their ranks. No sample has to be sorted by itself: one order
    serves them all.
    """
    distinct, place = np.unique(values, return_inverse=True)
    order = np.argsort(place, kind="stable")
    starts = np.searchsorted(place[order], np.arange(len(distinct)))
    sizes = np.add.reduceat(weights[..., order], starts, axis=-1)
    up_to = np.cumsum(sizes, axis=-1)
    ranks: NDArray[Any] = (up_to - (sizes + up_to[..., -1:]) / 2)[..., place]
    return ranks


def _by_seed(
    sides: Sequence[NDArray[Any]], times: NDArray[Any] | None = None
) -> list[NDArray[Any]]:
    """Each seed's correlation over the classes that it knows, of sides (S, K): () or (B,)."""
    fewest = 2 if len(sides) == 2 else FEWEST_CLASSES
    found = []
    for rows in zip(*sides, strict=True):
        known = np.isfinite(rows).all(0)
        counted = None if times is None else times[:, known]
        nothing = np.full(() if times is None else len(times), np.nan)
        enough = known.sum() >= fewest
        own = [row[known] for row in rows]
        found.append(rank_correlation(*own, times=counted) if enough else nothing)
    return found


def _bootstrap(sides: Sequence[NDArray[Any]]) -> Interval | None:
    """Percentile interval of the mean over seeds: a draw of classes is the same for every seed."""
    known = np.isfinite(sides).all(0).any(0)
    sides = [side[:, known] for side in sides]
    classes = int(known.sum())
    if classes < (FEWEST_CLASSES if len(sides) == 2 else FEWEST_OF_PARTIAL):
        return None
    generator = np.random.default_rng(0)
    drawn = []
    for _ in range(RESAMPLES // AT_ONCE):
        times = generator.multinomial(classes, np.full(classes, 1 / classes), size=AT_ONCE)
        drawn.append(mean_of_known(np.stack(_by_seed(sides, times))))
    means = np.concatenate(drawn)
    means = means[np.isfinite(means)]
    if not means.size:
        return None
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)
