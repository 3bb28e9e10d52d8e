"""Networks that were looked at, by arm and seed, as figures take them, and their arrays.

A group is what several trainings of one configuration have left, or one network of a user. The
laboratory's groups of runs fit :class:`NetworkGroup` as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

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


NETWORK = "network"
"""What figures call the only arm there is."""


@dataclass(frozen=True, eq=False)
class SingleNetwork:
    """One network, without a run folder, as a group of its own."""

    insight: InsightArrays
    arm: str = NETWORK
    seed: int = 0

    @property
    def insight_figures(self) -> Mapping[str, NDArray[Any]]:
        return {}

    @property
    def scores(self) -> Mapping[str, float | None]:
        return {}

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
    """The named arrays of every run that has them all, each of the shape of the first run's.

    Runs of one configuration have the same classes; one that has others was not written by us.
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


def safe_divide(sums: NDArray[Any], counts: NDArray[Any]) -> NDArray[Any]:
    """Divide sums by counts, which are broadcast; NaN where the count is 0.

    >>> safe_divide(np.array([3.0, 0.0]), np.array([2, 0])).tolist()
    [1.5, nan]
    """
    counts = np.broadcast_to(counts, sums.shape)
    result: NDArray[Any] = np.full(sums.shape, np.nan)
    np.divide(sums, counts, out=result, where=counts > 0)
    return result


# How many test images a figure is of: networks are looked at on a part of them.


@dataclass(frozen=True)
class ImageCount:
    """How many test images a figure shows, and how many there are, where that is known."""

    images: int
    whole: int | None

    @property
    def part(self) -> bool:
        return self.whole is not None and self.images < self.whole

    @property
    def words(self) -> str:
        """The words of a caption.

        >>> ImageCount(4096, 10_000).words, ImageCount(300, 300).words
        ('4,096 of the 10,000 test samples', '300 test samples')
        """
        if self.part:
            return f"{self.images:,} of the {self.whole:,} test samples"
        return f"{self.images:,} test samples"


def image_count(group: NetworkGroup, images: int) -> ImageCount:
    """``images`` among all test images, which networks that were looked at have answers for."""
    for run in group.runs:
        answers = run.insight_figures.get("correct") if run.insight else None
        if answers is not None and answers.ndim == 1:
            return ImageCount(images, len(answers))
    return ImageCount(images, None)


def mean_of_known(values: NDArray[Any]) -> NDArray[Any]:
    """Mean over the first axis, ignoring NaN; NaN where all are."""
    known = np.isfinite(values)
    return safe_divide(np.where(known, values, 0.0).sum(0), known.sum(0))
