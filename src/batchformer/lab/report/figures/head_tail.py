"""Which shot group predictions fall into, by the shot group of the image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from batchformer.insight.classes import shots_of
from batchformer.insight.figures.canvas import (
    DIVERGING,
    HALF_LETTERS,
    INK,
    SEQUENTIAL,
    TEXT,
    cells,
    new_grid,
    title,
    with_unit,
)
from batchformer.insight.figures.captioned import Caption, CaptionedFigure, FigureTable
from batchformer.insight.figures.networks import safe_divide
from batchformer.insight.figures.text import number, over_seeds, signed
from batchformer.insight.record import SHOTS
from batchformer.lab.metrics.intervals import Paired, paired
from batchformer.lab.report.results.configuration import RunGroup
from batchformer.lab.report.results.names import in_words
from batchformer.lab.report.results.runs import RecordedRun
from batchformer.lab.report.results.words import with_interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEAST_REACH = 5.0  # colours of a difference reach at least this many percentage points
PALE = 2.0
"""Colours reach this many times as far as the differences do. Intervals are not corrected for the
number of cells, so no cell has a full colour."""


@dataclass(frozen=True)
class HeadTailOfArm:
    """One arm over its seeds."""

    rates: NDArray[Any]  # (G, G) percent of a group's test images that are taken for each group
    right: NDArray[Any]  # (G,) percent of a group's test images that are taken for their own class
    # (G, G) from the reference on the same seeds; None for the reference, or if no seed is shared
    differences: list[list[Paired]] | None
    seeds: int


@dataclass(frozen=True)
class HeadTail:
    """The G shot groups that have classes with test images, and every arm."""

    groups: list[str]
    by_arm: dict[str, HeadTailOfArm]
    reference: str


def make(data: HeadTail) -> CaptionedFigure:
    return CaptionedFigure("From head to tail", caption(data), lambda: draw(data), (), tables(data))


def gather(group: RunGroup) -> HeadTail | None:
    """Collect the rates; None if no run kept its confusion matrix, or there is only one group."""
    found: dict[str, dict[int, tuple[NDArray[Any], NDArray[Any]]]] = {}
    for arm in group.arms:
        for run in group.of(arm):
            rates = _rates(run)
            if rates is not None:
                found.setdefault(arm, {})[run.seed] = rates
    every = [rates for runs in found.values() for rates, _ in runs.values()]
    if not every:
        return None
    present = np.flatnonzero(np.all([np.isfinite(rates).any(1) for rates in every], 0))
    if len(present) < 2:
        return None
    cut = np.ix_(present, present)
    start = found.get(group.reference, {})
    by_arm = {}
    for arm, runs in found.items():
        both = sorted(runs.keys() & start.keys()) if arm != group.reference else []
        differences = None
        if both:
            # Nested lists: a cell (row group, column group) holds a value for each seed.
            left, right = (
                np.stack([side[s][0][cut] for s in both], axis=-1).tolist()
                for side in (start, runs)
            )
            differences = [
                [paired(a, b) for a, b in zip(*rows, strict=True)]
                for rows in zip(left, right, strict=True)
            ]
        by_arm[arm] = HeadTailOfArm(
            np.mean([rates[cut] for rates, _ in runs.values()], 0),
            np.mean([right[present] for _, right in runs.values()], 0),
            differences,
            len(runs),
        )
    return HeadTail([SHOTS[i] for i in present], by_arm, group.reference)


def between_groups(
    confusion: NDArray[Any], shot_of_class: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Percent of each group's images taken for each group, (3, 3), and for their own class, (3,).

    ``confusion`` is (K, K) with targets in rows. NaN for a group without test images.
    """
    member = np.eye(len(SHOTS))[shot_of_class]
    table = member.T @ confusion @ member
    total = table.sum(1)
    right = member.T @ np.diagonal(confusion)
    return safe_divide(100.0 * table, total[:, None]), safe_divide(100.0 * right, total)


def _rates(run: RecordedRun) -> tuple[NDArray[Any], NDArray[Any]] | None:
    confusion, counts = run.figures.get("confusion"), run.figures.get("train_counts")
    if confusion is None or counts is None or confusion.shape != (len(counts), len(counts)):
        return None
    return between_groups(confusion.astype(np.float64), shot_of_class(run, counts))


def shot_of_class(run: RecordedRun, counts: NDArray[Any]) -> NDArray[Any]:
    """The shot group of every class, (K,) of 0, 1 or 2, as the run's own scores have them."""
    known = run.insight.get("shot_of_class")
    if known is not None and known.shape == counts.shape:
        return known.astype(np.int64)
    data = run.recipe.get("data")
    thirds = isinstance(data, dict) and data.get("shots") == "thirds"
    shots: NDArray[Any] = shots_of(counts.tolist(), "thirds" if thirds else "counts").numpy()
    return shots


def draw(data: HeadTail) -> Figure:
    """Draw a row for each arm: the rates, and their differences from the reference."""
    arms = list(data.by_arm)
    some = any(found.differences for found in data.by_arm.values())
    drawn, grid = new_grid(len(arms), 2 if some else 1, [1.55] * len(arms))
    reach = PALE * max([LEAST_REACH, *(abs(beyond_noise(d)) for d in _every(data))])
    for row, arm in zip(grid, arms, strict=True):
        found = data.by_arm[arm]
        texts = [[f"{value:.1f}" for value in line] for line in found.rates]
        for i, right in enumerate(found.right):
            texts[i][i] += f"\n({right:.1f})"
        cells(row[0], found.rates, texts, data.groups, colours=SEQUENTIAL, limits=(0, 100))
        title(row[0], with_unit(arm, "%", HALF_LETTERS))
        row[0].set_ylabel("image of", fontsize=TEXT, color=INK)
        if not some:
            continue
        if found.differences is None:
            row[1].set_visible(False)
            continue
        values = np.array([[beyond_noise(d) for d in line] for line in found.differences])
        marks = [[_difference(d) for d in line] for line in found.differences]
        cells(row[1], values, marks, data.groups, colours=DIVERGING, limits=(-reach, reach))
        row[1].set_yticks([])
        less = f"\N{MINUS SIGN} {data.reference}"
        title(row[1], with_unit(less, "pct. points", HALF_LETTERS))
    grid[-1][0].set_xlabel("taken for", fontsize=TEXT, color=INK)
    return drawn


def beyond_noise(found: Paired) -> float:
    """The difference where its interval does not hold 0; else 0, so that noise has no colour."""
    if found.low is None or found.high is None or found.low <= 0 <= found.high:
        return 0.0
    return found.difference


def _every(data: HeadTail) -> list[Paired]:
    return [d for found in data.by_arm.values() for row in found.differences or [] for d in row]


def _difference(found: Paired) -> str:
    text = signed(found.difference, 1).replace("-", "\N{MINUS SIGN}")
    if found.low is None or found.high is None:
        return text
    return f"{text}\n± {(found.high - found.low) / 2:.1f}"


def caption(data: HeadTail) -> Caption:
    note = (
        "Test images of classes with many, medium and few training images (rows), by the group of "
        "the class they are taken for (columns), in percent."
    )
    over = over_seeds({arm: found.seeds for arm, found in data.by_arm.items()})
    details = f"Means over {over}. In brackets: images taken for their own class."
    if any(found.differences for found in data.by_arm.values()):
        details += f" Beside it: the difference to {in_words(data.reference)} on the same seeds"
        tested = [d for d in _every(data) if d.low is not None]
        if tested:
            note += (
                f" Pale red is more, pale blue fewer than {in_words(data.reference)}, uncorrected."
            )
            details += (
                ", ± half the width of its 95% t interval. A cell whose interval holds 0 has no "
                "colour, and the others are pale, since each interval is for its cell alone"
            )
            chance = len(tested) / 20
            by_chance = f": by chance about {chance:.0f} of {len(tested)} would have a colour"
            details += f"{by_chance if chance >= 1 else ''}."
        else:
            details += ", without intervals, and so without colour."
    rarest, most = data.groups[-1], data.groups[0]
    said = "; ".join(
        f"{arm} {number(found.rates[-1, 0], 1)}%" for arm, found in data.by_arm.items()
    )
    said = f"Images of {rarest}-shot classes taken for {most}-shot ones: {said}."
    return Caption.of("Tables of coloured cells.", note, f"{details} {said}")


def tables(data: HeadTail) -> list[FigureTable]:
    made = []
    columns = ("image of", *(f"as {name}" for name in data.groups))
    for arm, found in data.by_arm.items():
        rows = [
            (name, *(number(value, 1) for value in line), number(right, 1))
            for name, line, right in zip(data.groups, found.rates, found.right, strict=True)
        ]
        made.append(FigureTable(f"{arm}, percent", (*columns, "right"), rows))
        if found.differences:
            rows = [
                (name, *map(with_interval, line))
                for name, line in zip(data.groups, found.differences, strict=True)
            ]
            made.append(FigureTable(f"{arm} - {data.reference}, percentage points", columns, rows))
    return made
