"""Curves of a value by update or epoch, over the seeds of an arm: their numbers and lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from batchformer.insight.figures.canvas import DASHES
from batchformer.lab.report.results.names import sorted_metrics
from batchformer.lab.report.results.runs import RecordedRun, headline

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_POINTS = 120  # points of a line; longer records are averaged over windows of equal length


class Curve(NamedTuple):
    """Mean, least and greatest over seeds at each step."""

    steps: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]


def curve_over_seeds(series: Sequence[dict[int, float]], most: int | None = MOST_POINTS) -> Curve:
    """Mean, least and greatest over seeds at the steps that every seed has.

    Args:
        series: a value by step, for each seed.
        most: the largest number of points, each a mean over a window; None keeps all.

    >>> curve_over_seeds([{10: 1.0, 20: 3.0}, {10: 2.0, 20: 5.0, 30: 7.0}])
    Curve(steps=[10.0, 20.0], mean=[1.5, 4.0], low=[1.0, 3.0], high=[2.0, 5.0])
    """
    steps = sorted(set.intersection(*map(set, series))) if series else []
    if not steps:
        return Curve([], [], [], [])
    windows = np.array_split(np.arange(len(steps)), min(most or len(steps), len(steps)))
    values = np.array([[one[step] for step in steps] for one in series], dtype=np.float64)
    smooth = np.stack([values[:, window].mean(axis=1) for window in windows], axis=1)
    places = [float(np.mean([steps[i] for i in window])) for window in windows]
    return Curve(places, smooth.mean(0).tolist(), smooth.min(0).tolist(), smooth.max(0).tolist())


def draw_curve(axes: Axes, arm: str, curve: Curve, colour: str, place: int) -> None:
    """Draw an arm's mean as a line and its range over seeds as a band; dashes go by ``place``."""
    dash = DASHES[place % len(DASHES)]
    axes.plot(curve.steps, curve.mean, color=colour, linestyle=dash, linewidth=1.5, label=arm)
    axes.fill_between(curve.steps, curve.low, curve.high, color=colour, alpha=0.18, linewidth=0)


def evaluated_metric(runs: Sequence[RecordedRun], fewest: int = 1) -> str | None:
    """The headline, or the first metric in the usual order, that was evaluated during training.

    A run must have had at least ``fewest`` evaluations of it; a line needs 2.
    """
    final = {name for run in runs for name in run.scores}
    seen = (name for name in final if any(len(run.series("eval", name)) >= fewest for run in runs))
    found = sorted_metrics(seen, headline(runs))
    return found[0] if found else None
