"""Training curves: the loss and the accuracy by update, with a band over seeds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from batchformer.report.canvas import DASHES, legend, new_figure, title
from batchformer.report.configuration import Group, one_group
from batchformer.report.names import arm_colours, metric_label, sorted_metrics
from batchformer.report.runs import Run, headline

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_POINTS = 120
"""Points of a line; longer records are averaged over windows of equal length."""


class Curve(NamedTuple):
    """Mean, least and greatest over seeds at each update."""

    steps: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]


class Line(NamedTuple):
    """What is drawn by update: a value of the records of one kind, and how it is called."""

    kind: str
    value: str
    label: str


def lines_of(group: Group) -> list[Line]:
    """The loss and the evaluated metric, each where a run has two of it: one alone is no line."""
    found = []
    if any(len(run.series("train", "loss")) >= 2 for run in group.runs):
        found.append(Line("train", "loss", "Training loss"))
    metric = evaluated_metric(group.runs, fewest=2)
    if metric is not None:
        found.append(Line("eval", metric, f"{metric_label(metric)}{whose(group)}"))
    return found


def training_curves(runs: Iterable[Run], reference: str | None = None) -> Figure:
    """Loss and evaluated accuracy by update: mean line and min-max band over seeds, per arm.

    The ``reference`` is drawn first, as in the tables.
    """
    group = one_group(runs, reference)
    shown = [(line, line.label + ", %" * (line.kind == "eval")) for line in lines_of(group)]
    figure, panels = new_figure([1.7] * len(shown))
    colours = arm_colours(group.arms)
    for axes, ((kind, value, _), label) in zip(panels, shown, strict=True):
        title(axes, label)
        for i, arm in enumerate(group.arms):
            curve = curve_over_seeds([run.series(kind, value) for run in group.of(arm)])
            dash, colour = DASHES[i % len(DASHES)], colours[arm]
            axes.plot(
                curve.steps, curve.mean, color=colour, linestyle=dash, linewidth=1.5, label=arm
            )
            axes.fill_between(
                curve.steps, curve.low, curve.high, color=colour, alpha=0.18, linewidth=0
            )
    title(panels[-1], f"{shown[-1][1]}, by update")
    legend(figure, panels[0])
    return figure


def whose(group: Group) -> str:
    """What evaluations by update are of, where that is not the network that is reported."""
    return " without SWAD" if (group.recipe.get("hyper") or {}).get("swad") else ""


def evaluated_metric(runs: Sequence[Run], fewest: int = 1) -> str | None:
    """The headline, or the first metric in the usual order, that was evaluated during training.

    Args:
        fewest: evaluations that a run must have had; a line needs 2.
    """
    final = {name for run in runs for name in run.scores}
    seen = (name for name in final if any(len(run.series("eval", name)) >= fewest for run in runs))
    found = sorted_metrics(seen, headline(runs))
    return found[0] if found else None


def curve_over_seeds(series: Sequence[dict[int, float]], most: int | None = MOST_POINTS) -> Curve:
    """Mean, least and greatest over seeds at the updates that every seed has.

    Args:
        series: a value by update, for each seed.
        most: points that are left, by means over windows; None keeps all.

    >>> curve_over_seeds([{10: 1.0, 20: 3.0}, {10: 2.0, 20: 5.0, 30: 7.0}])
    Curve(steps=[10.0, 20.0], mean=[1.5, 4.0], low=[1.0, 3.0], high=[2.0, 5.0])
    """
    import numpy as np

    steps = sorted(set.intersection(*map(set, series))) if series else []
    if not steps:
        return Curve([], [], [], [])
    windows = np.array_split(np.arange(len(steps)), min(most or len(steps), len(steps)))
    values = np.array([[one[step] for step in steps] for one in series], dtype=np.float64)
    smooth = np.stack([values[:, window].mean(axis=1) for window in windows], axis=1)
    places = [float(np.mean([steps[i] for i in window])) for window in windows]
    return Curve(places, smooth.mean(0).tolist(), smooth.min(0).tolist(), smooth.max(0).tolist())
