"""Plain features on their two principal axes, and how far classes lie apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from batchformer.insight.figures.canvas import (
    CLASS_COLOURS,
    CLASS_MARKERS,
    INK,
    SHOT_MARKS,
    SMALL,
    Mark,
    bare,
    mark_legend,
    new_grid,
    title,
)
from batchformer.insight.figures.captioned import Caption, CaptionedFigure, FigureTable
from batchformer.insight.figures.networks import NetworkGroup, arrays_by_arm, class_names, first_run
from batchformer.insight.figures.text import mean_with_interval, number
from batchformer.insight.intervals import Summary, summary_of_known
from batchformer.insight.record import SHOTS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAMES = (
    *("shot_of_class", "projection", "projection_labels", "projection_share"),
    *("separation", "spread"),
)
MEASURES = {
    "separation": "distance of class means to the nearest other, over the spread of a class",
    "spread": "distance of samples from their class mean, over that of all classes",
}
PANELS_A_ROW = 2
ROOM = 0.09
"""Inches above and below a panel, so that text below one does not touch the next one's title."""


@dataclass(frozen=True)
class FeaturesOfArm:
    """Features of one arm."""

    points: NDArray[Any]  # (S, 2) of its first seed
    labels: NDArray[Any]  # (S,) their classes
    share: tuple[float, float]  # of the variance on each axis
    # Separation and spread by shot group, over seeds; None for an empty group
    measures: dict[str, list[Summary | None]]
    seeds: int


@dataclass(frozen=True)
class FeatureSpace:
    """Every arm that has features."""

    shot_of_class: NDArray[Any]  # (K,) 0, 1 or 2
    by_arm: dict[str, FeaturesOfArm]
    seed: int | None  # of the points; None where arms have none in common
    names: tuple[str, ...] = ()  # of the K classes; empty where they are unknown

    @property
    def alone(self) -> bool:
        """Whether there is only one network, whose seed need not be named."""
        return sum(found.seeds for found in self.by_arm.values()) == 1

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
        """The marks of the classes, or of the shot groups."""
        if not self.by_class:
            return SHOT_MARKS
        looks = zip(self.names, CLASS_COLOURS, CLASS_MARKERS, strict=False)
        return [Mark(*look) for look in looks]

    def mark_of(self, labels: NDArray[Any]) -> NDArray[Any]:
        """The place in ``marks`` of each label (S,)."""
        return labels if self.by_class else self.shot_of_class[labels]


def make(data: FeatureSpace) -> CaptionedFigure:
    return CaptionedFigure("Feature space", caption(data), lambda: draw(data), tables(data))


def gather(group: NetworkGroup) -> FeatureSpace | None:
    """Points are of the first seed that all arms have, where there is one."""
    found = arrays_by_arm(group, *NAMES)
    if not found:
        return None
    common = set.intersection(*(set(runs) for runs in found.values()))
    seed = min(common, default=None)
    by_arm = {}
    for arm, runs in found.items():
        first = runs[min(runs) if seed is None else seed]
        measures = {
            name: [
                summary_of_known([run[name][i] for run in runs.values()], (0.0, np.inf))
                for i in range(len(SHOTS))
            ]
            for name in MEASURES
        }
        share = float(first["projection_share"][0]), float(first["projection_share"][1])
        points = first["projection"].astype(np.float64)
        by_arm[arm] = FeaturesOfArm(points, first["projection_labels"], share, measures, len(runs))
    shots = first_run(found)["shot_of_class"].astype(np.int64)
    return FeatureSpace(shots, by_arm, seed, class_names(group, next(iter(found)), len(shots)))


def class_means(points: NDArray[Any], labels: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Classes present (G,), and the means of their points, (G, 2)."""
    classes, inverse = np.unique(labels, return_inverse=True)
    sizes = np.bincount(inverse)
    means = np.stack([np.bincount(inverse, points[:, i]) / sizes for i in range(2)], 1)
    return classes, means


def draw(data: FeatureSpace) -> Figure:
    """Arms side by side; samples are small marks, class means large ones."""
    arms = list(data.by_arm)
    columns = min(PANELS_A_ROW, len(arms))
    rows = -(-len(arms) // columns)
    drawn, grid = new_grid(rows, columns, [2.4 if columns > 1 else 3.4] * rows)
    engine: Any = drawn.get_layout_engine()
    engine.set(h_pad=ROOM)
    panels = [axes for row in grid for axes in row]
    for axes in panels[len(arms) :]:
        axes.set_visible(False)
    for axes, arm in zip(panels, arms, strict=False):
        found = data.by_arm[arm]
        _scatter(axes, found, data)
        bare(axes)
        title(axes, arm)
        share = " and ".join(f"{100 * share:.0f}%" for share in found.share)
        axes.set_xlabel(f"{share} of the variance", fontsize=SMALL, color=INK)
    if data.by_class:
        mark_legend(drawn, data.marks)
    elif len(data.groups) > 1:
        mark_legend(drawn, [data.marks[i] for i in data.groups])
    return drawn


def _scatter(axes: Axes, found: FeaturesOfArm, data: FeatureSpace) -> None:
    classes, means = class_means(found.points, found.labels)
    crowded = len(classes) > 100
    for i, mark in enumerate(data.marks):
        own, of_class = data.mark_of(found.labels) == i, data.mark_of(classes) == i
        # Draw pixels: the outlines of thousands of marks would be most of a page's bytes.
        common: Any = {"marker": mark.shape, "color": mark.colour, "rasterized": True}
        size, (x, y) = 7 if data.by_class else 5, found.points[own].T
        axes.scatter(x, y, s=size, alpha=0.35, linewidths=0, **common)
        size, (x, y) = 10 if crowded else 46 if data.by_class else 34, means[of_class].T
        edge: Any = {"edgecolors": "white", "linewidths": 0.4 if crowded else 0.8}
        axes.scatter(x, y, s=size, zorder=3, **edge, **common)
    # A square, whatever the shape of the cloud, so that panels are of one size.
    low, high = found.points.min(0), found.points.max(0)
    (x, y), half = (low + high) / 2, 0.55 * float((high - low).max() or 1.0)
    axes.set_xlim(x - half, x + half)
    axes.set_ylim(y - half, y + half)
    axes.set_aspect("equal")


def caption(data: FeatureSpace) -> Caption:
    samples = len(next(iter(data.by_arm.values())).points)
    which = ", the first seed of each arm" if data.seed is None else f", seed {data.seed}"
    if data.alone:
        which = ""
    meant = " ".join(f"{name.capitalize()}: {MEASURES[name]}." for name in _measured(data))
    note = (
        f"Plain features of {samples:,} test samples on their two principal axes{which}; large "
        f"marks are class means. Each panel has its own axes."
    )
    columns = _columns(data)
    said = "; ".join(
        f"{arm}: separation "
        + ", ".join(
            f"{name} {number(value.mean)}"
            for i, name in columns.items()
            if (value := found.measures["separation"][i]) is not None
        )
        for arm, found in data.by_arm.items()
    )
    return Caption.of("Scatter plots.", note, meant, f"{said}.")


def _columns(data: FeatureSpace) -> dict[int, str]:
    """Column names of groups with numbers, by place in ``SHOTS``; one alone is 'all classes'."""
    groups = data.groups
    return {groups[0]: "all classes"} if len(groups) == 1 else dict(enumerate(SHOTS))


def _measured(data: FeatureSpace) -> list[str]:
    """The measures to show: with one group spread is 1 by definition, and left out."""
    return [name for name in MEASURES if len(data.groups) > 1 or name != "spread"]


def tables(data: FeatureSpace) -> list[FigureTable]:
    columns = _columns(data)
    return [
        FigureTable(
            f"{measure.capitalize()} of classes",
            (measure, "n", *columns.values()),
            [
                (
                    arm,
                    "" if data.alone else str(found.seeds),
                    *(mean_with_interval(found.measures[measure][i]) for i in columns),
                )
                for arm, found in data.by_arm.items()
            ],
        )
        for measure in _measured(data)
    ]
