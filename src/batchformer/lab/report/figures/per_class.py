"""Accuracy by class, from the most to the least frequent, with the paired difference."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from batchformer.insight.figures.canvas import (
    INK,
    MARKERS,
    TEXT,
    TITLE_LETTERS,
    legend,
    log_scale,
    new_figure,
    title,
    with_unit,
)
from batchformer.insight.figures.captioned import Caption, CaptionedFigure, FigureTable
from batchformer.insight.figures.networks import main_arm, mean_of_known
from batchformer.insight.figures.text import number, over_seeds, seeds, signed
from batchformer.insight.intervals import FEWEST_SEEDS
from batchformer.lab.metrics.intervals import Paired, paired
from batchformer.lab.report.results.configuration import RunGroup
from batchformer.lab.report.results.names import arm_colours, in_words
from batchformer.lab.report.results.runs import RecordedRun

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_POINTS = 100  # more classes than this are averaged over neighbours in frequency
MOST_LINES = 3  # arms whose accuracies are drawn in one panel; more would hide each other
MOST_NAMES = 20  # classes that are named along the axis; more would not be legible
SHORT_NAMES = 40  # letters that fit along the axis; longer names are turned


@dataclass(frozen=True)
class ByClass:
    """P points from the most to the least frequent class, or group of classes."""

    names: list[str]  # of the points; empty where they are too many to be read
    places: list[float]  # rank in frequency of a point, from 1; the middle of a group
    counts: list[float]  # training images of a class, (P,)
    # By arm, percent, mean over seeds, (P,); NaN without test images
    accuracy: dict[str, NDArray[Any]]
    # By arm that shares seeds with the reference; None for a point without test images
    differences: dict[str, list[Paired | None]]
    seeds: dict[str, int]  # how many each arm has
    paired_seeds: dict[str, int]  # how many each difference has
    classes: int  # K
    classes_per_point: int  # the largest number of classes in one point
    reference: str

    @property
    def drawn(self) -> list[str]:
        """Arms whose accuracy is drawn: all, or the reference and the main one if they are many.

        The others show in their differences. An arm without one would show nowhere, so it is drawn.
        """
        if len(self.accuracy) <= MOST_LINES:
            return list(self.accuracy)
        main = main_arm(self.differences)
        return [arm for arm in self.accuracy if arm == main or arm not in self.differences]


def make(data: ByClass) -> CaptionedFigure:
    table = _by_class_table(data)
    return CaptionedFigure("Accuracy by class", caption(data), lambda: draw(data), (), [table])


def caption(data: ByClass) -> Caption:
    most = data.classes_per_point
    points = "class" if most == 1 else f"group of up to {most} classes"
    note = (
        f"{data.classes:,} classes from the most to the fewest training images, one point for each "
        f"{points}: accuracy, mean over {over_seeds(data.seeds)}"
    )
    details = []
    if len(data.drawn) < len(data.accuracy):
        details.append(f"Accuracy is drawn of {' and '.join(map(in_words, data.drawn))} alone.")
    if data.differences:
        note += f", and the difference to {in_words(data.reference)} on the same seeds"
        fewest = min(data.paired_seeds.values())
        if fewest < FEWEST_SEEDS:
            note += f", without intervals, since an arm shares only {seeds(fewest)} with it"
        else:
            note += " with its 95% t interval"
            chance, alone = len(data.counts) / 20, "Each interval is for its point alone"
            if chance >= 1:
                alone += f": by chance about {chance:.0f} of {len(data.counts)} would miss 0"
            details.append(f"{alone}.")
    return Caption.of("Dot plot.", f"{note}.", " ".join(details))


def draw(data: ByClass) -> Figure:
    """Training counts, accuracy by arm and each arm's paired difference, over sorted classes."""
    others = list(data.differences)
    figure, panels = new_figure([0.6, 1.9, *[1.1] * len(others)])
    colours = arm_colours(data.accuracy)
    places = data.places
    crowded = len(places) > 40
    _counts_panel(panels[0], places, data)
    title(panels[1], "Accuracy by class, %")
    for i, arm in enumerate(data.drawn):
        own: Any = {"color": colours[arm], "label": arm, "linewidth": 1.0 if crowded else 0.6}
        own["markerfacecolor"] = "none" if arm == data.reference else colours[arm]
        marker = "" if crowded else MARKERS[i % len(MARKERS)]
        panels[1].plot(places, data.accuracy[arm], marker=marker, markersize=4, **own)
    for axes, arm in zip(panels[2:], others, strict=True):
        _difference_panel(axes, places, data.differences[arm], colours[arm], crowded)
        difference = f"{arm} \N{MINUS SIGN} {data.reference}"
        title(axes, with_unit(difference, "percentage points", TITLE_LETTERS))
    for axes in panels[3:]:
        axes.sharey(panels[2])
    if data.names:
        short = sum(map(len, data.names)) <= SHORT_NAMES
        panels[-1].set_xticks(places, data.names, rotation=0 if short else 90, fontsize=TEXT - 1)
        for label in panels[-1].get_xticklabels():
            label.set_parse_math(False)
    legend(figure, panels[1])
    return figure


def gather(group: RunGroup) -> ByClass | None:
    kept = {run: array for run in group.runs if (array := _accuracy(run)) is not None}
    if not kept:
        return None
    # Runs of one configuration have the same classes; a run with other classes is left out.
    classes = len(next(iter(kept.values())))
    kept = {run: array for run, array in kept.items() if len(array) == classes}
    counts = np.mean([run.figures["train_counts"] for run in kept], axis=0)
    order = np.argsort(-counts, kind="stable")
    classes_per_point = -(-classes // MOST_POINTS)
    points = [order[i : i + classes_per_point] for i in range(0, classes, classes_per_point)]
    values = {
        run: np.array([mean_of_known(array[point]) for point in points])
        for run, array in kept.items()
    }
    accuracy, differences = {}, {}
    seeds, paired_seeds = {}, {}
    start = {run.seed: values[run] for run in group.of(group.reference) if run in values}
    for arm in group.arms:
        own = {run.seed: values[run] for run in group.of(arm) if run in values}
        if not own:
            continue
        accuracy[arm], seeds[arm] = np.mean(list(own.values()), axis=0), len(own)
        both = sorted(own.keys() & start.keys())
        if arm != group.reference and both:
            left, right = (np.array([side[s] for s in both]) for side in (start, own))
            differences[arm] = [_paired(left[:, i], right[:, i]) for i in range(len(points))]
            paired_seeds[arm] = len(both)
    return ByClass(
        _names(order, kept),
        [i * classes_per_point + (len(point) + 1) / 2 for i, point in enumerate(points)],
        [float(counts[point].mean()) for point in points],
        accuracy,
        differences,
        seeds,
        paired_seeds,
        classes,
        classes_per_point,
        group.reference,
    )


def _accuracy(run: RecordedRun) -> NDArray[Any] | None:
    per_class, counts = run.figures.get("per_class"), run.figures.get("train_counts")
    if per_class is None or counts is None or per_class.ndim != 1 or not per_class.size:
        return None
    return per_class if per_class.shape == counts.shape else None


def _names(order: NDArray[Any], kept: Iterable[RecordedRun]) -> list[str]:
    names = next((run.figures.get("classes") for run in kept), None)
    if names is None or len(names) != len(order) or len(order) > MOST_NAMES:
        return []
    return [str(names[i]) for i in order]


def _paired(left: NDArray[Any], right: NDArray[Any]) -> Paired | None:
    if np.isnan(left).any() or np.isnan(right).any():
        return None
    return paired(left.tolist(), right.tolist())


def _counts_panel(axes: Axes, places: list[float], data: ByClass) -> None:
    # A class without training images has no place on a log scale; it stays at the bottom.
    counts = [max(count, 0.5) for count in data.counts]
    edges = [min(i * data.classes_per_point, data.classes) + 0.5 for i in range(len(places) + 1)]
    axes.stairs(counts, edges, baseline=0.01, fill=True, color=INK, alpha=0.3, linewidth=0)
    log_scale(axes, lambda value: f"{value:,.10g}")
    axes.set_ylim(max(min(counts) * 0.5, 0.5), max(counts) * 1.5)
    title(axes, "Training images, log scale")


def _difference_panel(
    axes: Axes, places: list[float], found: list[Paired | None], colour: str, crowded: bool
) -> None:
    axes.axhline(0, color=INK, linewidth=0.9)
    shown = [(x, result) for x, result in zip(places, found, strict=True) if result is not None]
    bars = [(x, r.low, r.high) for x, r in shown if r.low is not None and r.high is not None]
    if bars:
        wide = 1.2 if crowded else 2.5
        axes.vlines(*zip(*bars, strict=True), color=colour, alpha=0.45, linewidth=wide)
    x, y = [x for x, _ in shown], [result.difference for _, result in shown]
    size = 1.8 if crowded else 4
    axes.plot(x, y, linestyle="", marker="o", markersize=size, color=colour)


def _by_class_table(data: ByClass) -> FigureTable:
    rows = []
    for i, count in enumerate(data.counts):
        name = data.names[i] if data.names else f"{data.places[i]:,.0f}"
        changes = [each[i] for each in data.differences.values()]
        rows.append(
            (
                name,
                f"{count:,.0f}",
                *(number(float(values[i]), 1) for values in data.accuracy.values()),
                *("" if change is None else signed(change.difference, 1) for change in changes),
            )
        )
    differences = (f"{arm} - {data.reference}" for arm in data.differences)
    columns = ("class" if data.names else "rank", "images", *data.accuracy, *differences)
    return FigureTable("Accuracy by class, %", columns, rows)
