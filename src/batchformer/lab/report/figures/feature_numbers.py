"""Plain features as runs kept them, on two axes, and how far classes lie apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchformer.insight.record import SHOTS
from batchformer.lab.metrics.intervals import Summary, summary
from batchformer.lab.report.figures.kept import kept
from batchformer.lab.report.figures.panels import CLASS_COLOURS, CLASS_MARKERS, SHOT_MARKS, Mark
from batchformer.lab.report.results.configuration import Group

NAMES = (
    "shot_of_class",
    "projection",
    "projection_labels",
    "projection_share",
    "separation",
    "spread",
)
MEASURES = {
    "separation": "distance of class means to the nearest other, over the spread of a class",
    "spread": "distance of samples from their class mean, over that of all classes",
}


@dataclass(frozen=True)
class OfArm:
    """Features of one arm.

    Args:
        points: (S, 2) of its first seed.
        labels: (S,) their classes.
        share: of the variance on each axis.
        measures: separation and spread by shot group, over seeds; None for an empty group.
        seeds: how many.
    """

    points: NDArray[Any]
    labels: NDArray[Any]
    share: tuple[float, float]
    measures: dict[str, list[Summary | None]]
    seeds: int


@dataclass(frozen=True)
class FeatureSpace:
    """Every arm that has features.

    Args:
        shot_of_class: (K,) 0, 1 or 2.
        by_arm: arms.
        seed: of the points; None where arms have none in common.
        names: of the K classes; empty where they are unknown.
    """

    shot_of_class: NDArray[Any]
    by_arm: dict[str, OfArm]
    seed: int | None
    names: tuple[str, ...] = ()

    @property
    def by_class(self) -> bool:
        """Whether classes are few enough that each has a mark of its own."""
        return 0 < len(self.names) <= len(CLASS_COLOURS)

    @property
    def groups(self) -> list[int]:
        """Places in ``SHOTS`` of the groups that have points."""
        labels = np.concatenate([found.labels for found in self.by_arm.values()])
        return sorted({int(i) for i in self.shot_of_class[labels]})

    @property
    def marks(self) -> list[Mark]:
        """Of the classes, or of the shot groups."""
        if not self.by_class:
            return SHOT_MARKS
        looks = zip(self.names, CLASS_COLOURS, CLASS_MARKERS, strict=False)
        return [Mark(*look) for look in looks]

    def mark_of(self, labels: NDArray[Any]) -> NDArray[Any]:
        """Places in ``marks`` of labels (S,)."""
        return labels if self.by_class else self.shot_of_class[labels]


def gather(group: Group) -> FeatureSpace | None:
    """What the figure shows, or None where no run kept its features.

    Points are of the first seed that all arms have, where there is one.
    """
    found = kept(group, *NAMES)
    if not found:
        return None
    common = set.intersection(*(set(runs) for runs in found.values()))
    seed = min(common, default=None)
    by_arm = {}
    for arm, runs in found.items():
        first = runs[min(runs) if seed is None else seed]
        measures = {
            name: [_over_seeds([run[name][i] for run in runs.values()]) for i in range(len(SHOTS))]
            for name in MEASURES
        }
        share = float(first["projection_share"][0]), float(first["projection_share"][1])
        points = first["projection"].astype(np.float64)
        by_arm[arm] = OfArm(points, first["projection_labels"], share, measures, len(runs))
    shots = next(iter(next(iter(found.values())).values()))["shot_of_class"]
    named = (run.insight.get("classes") for run in group.of(next(iter(found))))
    names = next((one for one in named if one is not None and one.shape == shots.shape), ())
    known = tuple(map(str, names))
    return FeatureSpace(shots.astype(np.int64), by_arm, seed, known)


def class_means(points: NDArray[Any], labels: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Classes present (G,), and the means of their points, (G, 2)."""
    classes, inverse = np.unique(labels, return_inverse=True)
    sizes = np.bincount(inverse)
    means = np.stack([np.bincount(inverse, points[:, i]) / sizes for i in range(2)], 1)
    return classes, means


def _over_seeds(values: list[Any]) -> Summary | None:
    known = [float(value) for value in values if np.isfinite(value)]
    return summary(known, within=(0.0, np.inf)) if known else None
