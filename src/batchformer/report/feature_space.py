"""Plain features on their two principal axes, and how far classes lie apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from batchformer.insight.record import SHOTS
from batchformer.metrics.intervals import Summary, summary
from batchformer.report.canvas import INK, title
from batchformer.report.configuration import Group
from batchformer.report.kept import kept
from batchformer.report.panels import (
    SHOT_COLOURS,
    SHOT_MARKERS,
    SMALL,
    bare,
    new_grid,
    shot_legend,
)
from batchformer.report.shown import Numbers, Shown, Words
from batchformer.report.words import interval, number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAMES = (
    "shot_of_class",
    "projection",
    "projection_labels",
    "projection_share",
    "separation",
    "spread",
)
PANELS_A_ROW = 2
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
    """Every arm that has features, and the shot group (0, 1 or 2) of every class, (K,)."""

    shot_of_class: NDArray[Any]
    by_arm: dict[str, OfArm]
    seed: int | None


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
    return FeatureSpace(shots.astype(np.int64), by_arm, seed)


def class_means(points: NDArray[Any], labels: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Classes present (G,), and the means of their points, (G, 2)."""
    classes, inverse = np.unique(labels, return_inverse=True)
    sizes = np.bincount(inverse)
    means = np.stack([np.bincount(inverse, points[:, i]) / sizes for i in range(2)], 1)
    return classes, means


def figure(data: FeatureSpace) -> Figure:
    """Arms side by side; samples are small marks, class means large ones."""
    arms = list(data.by_arm)
    columns = min(PANELS_A_ROW, len(arms))
    rows = -(-len(arms) // columns)
    drawn, grid = new_grid(rows, columns, [2.4 if columns > 1 else 3.4] * rows)
    panels = [axes for row in grid for axes in row]
    for axes in panels[len(arms) :]:
        axes.set_visible(False)
    for axes, arm in zip(panels, arms, strict=False):
        found = data.by_arm[arm]
        _scatter(axes, found, data.shot_of_class)
        bare(axes)
        title(axes, arm)
        axes.set_xlabel(
            " and ".join(f"{100 * share:.0f}%" for share in found.share) + " of the variance",
            fontsize=SMALL,
            color=INK,
        )
    groups = sorted({int(data.shot_of_class[y]) for f in data.by_arm.values() for y in f.labels})
    shot_legend(drawn, [SHOTS[i] for i in groups])
    return drawn


def _scatter(axes: Axes, found: OfArm, shot_of_class: NDArray[Any]) -> None:
    classes, means = class_means(found.points, found.labels)
    crowded = len(classes) > 100
    for i, name in enumerate(SHOTS):
        own, of_class = shot_of_class[found.labels] == i, shot_of_class[classes] == i
        # Pixels: thousands of marks as outlines would be most of a page.
        common: Any = {
            "marker": SHOT_MARKERS[name],
            "color": SHOT_COLOURS[name],
            "rasterized": True,
        }
        axes.scatter(
            found.points[own, 0], found.points[own, 1], s=5, alpha=0.35, linewidths=0, **common
        )
        axes.scatter(
            means[of_class, 0],
            means[of_class, 1],
            s=10 if crowded else 34,
            edgecolors="white",
            linewidths=0.4 if crowded else 0.8,
            zorder=3,
            **common,
        )
    # A square, whatever the shape of the cloud, so that panels are of one size.
    low, high = found.points.min(0), found.points.max(0)
    (x, y), half = (low + high) / 2, 0.55 * float((high - low).max() or 1.0)
    axes.set_xlim(x - half, x + half)
    axes.set_ylim(y - half, y + half)
    axes.set_aspect("equal")


def words(data: FeatureSpace) -> Words:
    """What is plotted, and how far classes lie apart."""
    samples = len(next(iter(data.by_arm.values())).points)
    which = "the first seed of each arm" if data.seed is None else f"seed {data.seed}"
    note = (
        f"Plain features of {samples:,} test images on their two principal axes, {which}; large "
        f"marks are class means. Every panel has axes of its own. Separation: "
        f"{MEASURES['separation']}. Spread: {MEASURES['spread']}."
    )
    said = "; ".join(
        f"{arm}: separation "
        + ", ".join(
            f"{name} {number(value.mean)}"
            for name, value in zip(SHOTS, found.measures["separation"], strict=True)
            if value is not None
        )
        for arm, found in data.by_arm.items()
    )
    return Words(note, f"Scatter plots. {note} {said}.")


def numbers(data: FeatureSpace) -> list[Numbers]:
    """Separation and spread by shot group and arm."""
    return [
        Numbers(
            f"{measure.capitalize()} of classes",
            (measure, "n", *SHOTS),
            [
                (arm, str(found.seeds), *map(_text, found.measures[measure]))
                for arm, found in data.by_arm.items()
            ],
        )
        for measure in MEASURES
    ]


def shown(group: Group) -> Shown | None:
    """The figure with its words and numbers."""
    data = gather(group)
    if data is None:
        return None
    return Shown("Feature space", words(data), lambda: figure(data), numbers(data))


def _over_seeds(values: list[Any]) -> Summary | None:
    known = [float(value) for value in values if np.isfinite(value)]
    return summary(known) if known else None


def _text(value: Summary | None) -> str:
    if value is None:
        return ""
    return f"{number(value.mean)} {interval(value.low, value.high)}".strip()
