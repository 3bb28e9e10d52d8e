"""A sweep's metric by level: every seed, means with intervals, the baseline, and the paper."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from batchformer.insight.figures.canvas import INK, MARKERS, TEXT, legend, new_figure, title
from batchformer.insight.figures.captioned import Caption, CaptionedFigure
from batchformer.insight.figures.text import interval, number
from batchformer.insight.intervals import FEWEST_SEEDS
from batchformer.lab.config.arms import BASELINE
from batchformer.lab.report.results.names import arm_colours, metric_label
from batchformer.lab.report.results.sweeps import Cell, SweepComparison

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SPREAD = 0.16  # distance of arms at one level, where levels are 1 apart
SEEDS: Any = {"linestyle": "", "marker": ".", "markersize": 4}
DOTTED: Any = (0, (1, 1.5))
SECOND = "few"  # the metric of the second panel: where the paper sees most of BatchFormer's gain


def make(found: SweepComparison) -> CaptionedFigure | None:
    """The figure of a sweep's metric by level; None if no run has finished."""
    if not found.cells:
        return None
    sweep, label = found.sweep, metric_label(found.metric)
    note = (
        f"{label} by {sweep.factor}: small dots are seeds, larger marks their means, bars the "
        f"95% t intervals of the means, where there are {FEWEST_SEEDS} seeds"
    )
    if sweep.shared_baseline:
        note += "; the broken line is the baseline, which no level changes, its band its interval"
    if any(score.paper is not None for score in found.scores.values()):
        note += "; dotted, with hollow marks, the paper's numbers"
    note += ". Levels stand at equal distances."
    said = Caption.of("Dot plot.", note, said=f"{described(found)}.")
    return CaptionedFigure(f"{label} by {sweep.factor}", said, lambda: draw(found))


def draw(comparison: SweepComparison) -> Figure:
    """Levels from left to right at equal distances; a panel for the tested metric, one for Few."""
    metrics = _panels(comparison)
    figure, panels = new_figure([2.2, 1.6][: len(metrics)])
    for axes, metric in zip(panels, metrics, strict=True):
        _panel(axes, comparison, metric)
        title(axes, f"{metric_label(metric)}, %")
    title(panels[-1], f"{metric_label(metrics[-1])}, %, by {comparison.sweep.factor}")
    levels = comparison.sweep.levels
    panels[-1].set_xticks(range(len(levels)), levels)
    panels[-1].set_xlim(-0.5, len(levels) - 0.5)
    for text in panels[-1].get_xticklabels():
        text.set_parse_math(False)
        text.set_fontsize(TEXT)
    legend(figure, panels[0])
    return figure


def described(comparison: SweepComparison) -> str:
    """What the figure shows, with its numbers, for a reader who cannot see it."""
    parts = []
    for metric in _panels(comparison):
        for arm in _arms(comparison):
            listed = []
            for level in _levels(comparison, arm, metric):
                found = comparison.scores[(arm, level), metric]
                limits = interval(found.summary.low, found.summary.high)
                text = f"{level}: {number(found.summary.mean)} {limits}".strip()
                paper = "" if found.paper is None else f", paper {number(found.paper, 1)}"
                listed.append(text + paper)
            if listed:
                parts.append(f"{metric_label(metric)} of {arm}, {'; '.join(listed)}")
    return ". ".join(parts)


def _panels(comparison: SweepComparison) -> list[str]:
    return [comparison.metric, *(m for m in comparison.metrics[1:] if m == SECOND)]


def _arms(comparison: SweepComparison) -> list[str]:
    return list(dict.fromkeys(arm for arm, _ in comparison.cells))


def _levels(comparison: SweepComparison, arm: str, metric: str) -> list[str]:
    return [v for v in comparison.sweep.levels if ((arm, v), metric) in comparison.scores]


def _panel(axes: Axes, comparison: SweepComparison, metric: str) -> None:
    sweep, colours = comparison.sweep, arm_colours(_arms(comparison))
    arms = _arms(comparison)
    if sweep.shared_baseline and BASELINE in arms:
        _band(axes, comparison, sweep.baseline_of(sweep.reference), metric, colours[BASELINE])
        arms.remove(BASELINE)
    for i, arm in enumerate(arms):
        shift = SPREAD * (i - (len(arms) - 1) / 2)
        look: Any = {"color": colours[arm], "marker": MARKERS[i % len(MARKERS)]}
        _curve(axes, comparison, arm, metric, shift, look)


def _curve(
    axes: Axes, comparison: SweepComparison, arm: str, metric: str, shift: float, look: Any
) -> None:
    """One arm: seeds as small dots, means joined by a line, intervals as bars, the paper dotted."""
    levels = _levels(comparison, arm, metric)
    scores = {level: comparison.scores[(arm, level), metric] for level in levels}
    place = {level: i for i, level in enumerate(comparison.sweep.levels)}
    at = {level: place[level] + shift for level in levels}
    seeds = [(at[level], value) for level in levels for value in scores[level].summary.values]
    # Beside the mean's marker, which would hide them.
    x, y = [x + SPREAD / 2 for x, _ in seeds], [y for _, y in seeds]
    axes.plot(x, y, **SEEDS, color=look["color"], alpha=0.6)
    means = [scores[level].summary.mean for level in levels]
    # A line has a meaning only if the levels are numbers.
    ordered = all(re.fullmatch(r"[\d.e+-]+", level) for level in comparison.sweep.levels)
    width = 1.5 if ordered else 0
    axes.plot(list(at.values()), means, **look, markersize=5, linewidth=width, label=arm)
    for level in levels:
        low, high = scores[level].summary.low, scores[level].summary.high
        if low is not None and high is not None:
            axes.vlines(at[level], low, high, color=look["color"], linewidth=1.5, alpha=0.8)
    printed = {level: s.paper for level, s in scores.items() if s.paper is not None}
    if printed:
        hollow: Any = {"linestyle": DOTTED, "markerfacecolor": "none", "markersize": 6}
        hollow |= {"linewidth": 1.2 if ordered else 0, "label": f"{arm}, paper"}
        axes.plot([at[level] for level in printed], list(printed.values()), **look, **hollow)


def _band(axes: Axes, comparison: SweepComparison, cell: Cell, metric: str, colour: str) -> None:
    """A baseline that is the same at every level: its mean, and its interval where there is one."""
    found = comparison.scores.get((cell, metric))
    if found is None:
        return
    axes.axhline(found.summary.mean, color=colour, linestyle=(0, (4, 1.5)), label=cell[0])
    if found.summary.low is not None and found.summary.high is not None:
        axes.axhspan(found.summary.low, found.summary.high, color=colour, alpha=0.18, linewidth=0)
    right, values = len(comparison.sweep.levels) - 0.5, found.summary.values
    axes.plot([right - 0.06] * len(values), values, **SEEDS, color=colour)
    if found.paper is not None:
        label = f"{cell[0]}, paper"
        axes.axhline(found.paper, color=INK, linestyle=DOTTED, linewidth=1, label=label)
