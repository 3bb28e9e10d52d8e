"""Training curves: the loss and the accuracy by update, with a band over seeds."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from batchformer.lab.methods.ldam import DEFERRED
from batchformer.lab.report.figures.canvas import DASHES, legend, new_figure, title
from batchformer.lab.report.results.configuration import Group, one_group
from batchformer.lab.report.results.names import BASELINE, arm_colours, metric_label, sorted_metrics
from batchformer.lab.report.results.runs import Run, headline

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_POINTS = 120
"""Points of a line; longer records are averaged over windows of equal length."""


_REWEIGHTED = ("reweight_epoch", "the loss weights classes by how rare they are")
_PENALISED = ("penalty_from", "the penalty has its full weight")
CHANGES = dict.fromkeys(DEFERRED, _REWEIGHTED) | dict.fromkeys(("irm", "vrex"), _PENALISED)
"""Methods that change their loss on the way: the setting that says at which epoch, and how."""


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


def scales_of_losses(group: Group) -> list[str]:
    """Which arms' losses are not on the scale of the others', a sentence for each reason."""
    summed: dict[str, list[str]] = {}
    multiplied = []
    for arm in group.arms:
        factor = _stream_factor(arm, group.of(arm)[0].recipe.get("module") or {})
        if factor != 1:
            summed.setdefault(f"{factor:g}", []).append(arm)
        if found := re.fullmatch(r"baseline_loss([\d.]+)x", arm):
            multiplied.append(
                f"The loss of {arm} is shown before it is multiplied by {found[1]}, on the scale "
                f"of the baseline's."
            )
    said = [
        f"The loss of {' and '.join(arms)} is {factor} times the mean of both streams, and not "
        f"comparable with the others."
        for factor, arms in summed.items()
    ]
    return said + multiplied


def _stream_factor(arm: str, module: Mapping[str, Any]) -> float:
    """The logged loss over the mean of both streams; 1 where there is one stream."""
    alone = module.get("streams") == "mixed_only" or arm == "batchformer_mixed_only"
    if alone or arm.startswith(BASELINE) or module.get("enabled") is False:
        return 1.0
    official = arm == "batchformer_official_loss"
    scale = "official" if official else module.get("loss_scale", "mean")
    both = 1.0 + float(module.get("mixed_weight", 1.0))
    return {"sum": both, "official": 1.5 * both}.get(scale, 1.0)


def change_of_loss(group: Group) -> list[str]:
    """Where a method changes its loss on the way, a sentence; of a change out of sight none."""
    setting, what = CHANGES.get(str(group.recipe.get("method")), ("", ""))
    hyper = group.recipe.get("hyper") or {}
    epoch = hyper.get(setting)
    # Before its epoch a penalty has the weight 1.
    if not epoch or (setting == "penalty_from" and hyper.get("penalty") == 1):
        return []
    records = [record for run in group.runs for record in run.metrics if record["kind"] == "train"]
    after = [record["step"] for record in records if record.get("epoch", -1) >= epoch]
    if not after:
        return []
    return [
        f"From epoch {epoch} on, about update {min(after):,}, {what}: losses before and after are "
        f"not comparable."
    ]


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
