"""The arrays that runs kept of their networks, by arm and by seed."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchformer.insight.record import Insight
from batchformer.lab.report.results.configuration import Group

Kept = dict[str, dict[int, Insight]]
"""Arrays by arm, in the order of a group, and by seed."""


def kept(group: Group, *names: str) -> Kept:
    """The named arrays of every run that has them all, each of the shape of the first run's.

    Runs of one configuration have the same classes; one that has others was not written by us.
    Arms without such a run are left out.
    """
    found: Kept = {}
    shapes: list[tuple[int, ...]] | None = None
    for arm in group.arms:
        for run in group.of(arm):
            arrays = {name: run.insight.get(name) for name in names}
            present = {name: array for name, array in arrays.items() if array is not None}
            if len(present) < len(names):
                continue
            own = [array.shape for array in present.values()]
            shapes = shapes or own
            if own == shapes:
                found.setdefault(arm, {})[run.seed] = present
    return found


def over(found: Kept) -> str:
    """How many seeds each arm has, for a caption."""
    return ", ".join(f"{arm} {len(seeds)}" for arm, seeds in found.items())


def per(sums: NDArray[Any], counts: NDArray[Any]) -> NDArray[Any]:
    """Sums over counts, which are broadcast to them; NaN where nothing was counted.

    >>> per(np.array([3.0, 0.0]), np.array([2, 0])).tolist()
    [1.5, nan]
    """
    counts = np.broadcast_to(counts, sums.shape)
    result: NDArray[Any] = np.full(sums.shape, np.nan)
    np.divide(sums, counts, out=result, where=counts > 0)
    return result
