"""How figures read networks that were looked at: by arm and seed, with their arrays.

A group holds the networks from several trainings of one configuration, or one network of a user.
The laboratory's groups of runs satisfy :class:`NetworkGroup` without an adapter.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from batchformer.insight.record import InsightArrays


class TrainedNetwork(Protocol):
    """One network of one arm and seed."""

    @property
    def arm(self) -> str: ...

    @property
    def seed(self) -> int: ...

    @property
    def insight(self) -> InsightArrays:
        """What was seen of it, by the names of :mod:`batchformer.insight.record`."""

    @property
    def insight_figures(self) -> Mapping[str, NDArray[Any]]:
        """Further arrays of the same network, such as ``correct`` (M,) of all M test images."""

    @property
    def scores(self) -> Mapping[str, float | None]:
        """Its final metrics by name."""


class NetworkGroup(Protocol):
    """Networks that one figure may show together."""

    @property
    def reference(self) -> str:
        """The arm that others are compared with; it need not be there."""

    @property
    def runs(self) -> Sequence[TrainedNetwork]: ...

    @property
    def arms(self) -> Sequence[str]:
        """The arms in the order in which they are shown."""

    def of(self, arm: str) -> Sequence[TrainedNetwork]:
        """The networks of one arm, by seed."""

    def colours_of(self, arms: Iterable[str]) -> Mapping[str, str]:
        """A colour for each of these arms."""


@dataclass(frozen=True, eq=False)
class SingleNetwork:
    """One network, without a run folder, as a group of its own."""

    insight: InsightArrays
    arm: str = "network"
    seed: int = 0
    insight_figures: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    scores: Mapping[str, float | None] = field(default_factory=dict)

    @property
    def reference(self) -> str:
        return self.arm

    @property
    def runs(self) -> Sequence[TrainedNetwork]:
        return (self,)

    @property
    def arms(self) -> Sequence[str]:
        return [self.arm]

    def of(self, arm: str) -> Sequence[TrainedNetwork]:
        return self.runs if arm == self.arm else ()

    def colours_of(self, arms: Iterable[str]) -> Mapping[str, str]:
        return dict.fromkeys(arms, "#2a8c99")


ArraysByArm = dict[str, dict[int, InsightArrays]]
"""Arrays by arm, in the order of a group, and by seed."""


def arrays_by_arm(group: NetworkGroup, *names: str) -> ArraysByArm:
    """The named arrays of every run that has them all, in the shapes of the first such run.

    Runs of one configuration have the same classes, so arrays of another shape are left out.
    Arms without such a run are left out.
    """
    found: ArraysByArm = {}
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


def first_run(found: ArraysByArm) -> InsightArrays:
    """The arrays of the first seed of the first arm."""
    return next(iter(next(iter(found.values())).values()))


def main_arm(arms: Collection[str]) -> str | None:
    """The arm that a reader asks about: batchformer, else the first; None where there is none."""
    return "batchformer" if "batchformer" in arms else next(iter(arms), None)


def class_names(group: NetworkGroup, arm: str, classes: int) -> tuple[str, ...]:
    """The names of K classes from a run of this arm; empty if no run has them."""
    for run in group.of(arm):
        names = run.insight.get("classes")
        if names is not None and names.shape == (classes,):
            return tuple(map(str, names))
    return ()


def safe_divide(sums: NDArray[Any], counts: NDArray[Any]) -> NDArray[Any]:
    """Divide sums by counts, which are broadcast; NaN where the count is 0.

    >>> safe_divide(np.array([3.0, 0.0]), np.array([2, 0])).tolist()
    [1.5, nan]
    """
    counts = np.broadcast_to(counts, sums.shape)
    result: NDArray[Any] = np.full(sums.shape, np.nan)
    np.divide(sums, counts, out=result, where=counts > 0)
    return result


# How many test images a figure shows: networks are looked at on a part of them.


class ImageCount(NamedTuple):
    """How many test images a figure shows, in words, and whether these are known not to be all."""

    words: str
    part: bool


def image_count(group: NetworkGroup, images: int) -> ImageCount:
    """Say ``images`` of how many: a run's array ``correct`` has an entry for each test image."""
    for run in group.runs:
        answers = run.insight_figures.get("correct") if run.insight else None
        if answers is not None and answers.ndim == 1:
            if images < len(answers):
                return ImageCount(f"{images:,} of the {len(answers):,} test samples", True)
            break
    return ImageCount(f"{images:,} test samples", False)


def mean_of_known(values: NDArray[Any]) -> NDArray[Any]:
    """Mean over the first axis, ignoring NaN; NaN where all are."""
    known = np.isfinite(values)
    return safe_divide(np.where(known, values, 0.0).sum(0), known.sum(0))
