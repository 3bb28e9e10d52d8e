"""Figures of what every run logs: curves, convergence of probes, SWAD's valley."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from batchformer.lab.methods.ldam import DEFERRED
from batchformer.lab.report.figures.canvas import DASHES, INK, TEXT, legend, new_figure, title
from batchformer.lab.report.figures.shown import Numbers
from batchformer.lab.report.results.configuration import RunGroup, one_group
from batchformer.lab.report.results.names import (
    BASELINE,
    arm_colours,
    in_words,
    metric_label,
    sorted_metrics,
)
from batchformer.lab.report.results.runs import Run, headline
from batchformer.lab.report.results.words import number
from batchformer.lab.runs.folder import findings_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Training curves: the loss and the accuracy by update, with a band over seeds.

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


def lines_of(group: RunGroup) -> list[Line]:
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


def scales_of_losses(group: RunGroup) -> list[str]:
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


def change_of_loss(group: RunGroup) -> list[str]:
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


def whose(group: RunGroup) -> str:
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


# How fast a linear probe learns: its score by epoch, and when it has caught up with another's.

#: Epoch of the probe at which, by the paper's figure, MoCo-v3 with BatchFormer has the score that
#: MoCo-v3 alone has after all 90.
PAPERS_EPOCH = 38


@dataclass(frozen=True)
class Convergence:
    """Scores of probes by epoch, of all arms of a group.

    Args:
        metric: which score.
        reference: the arm whose final score is to be reached.
        curves: mean, least and greatest over seeds by epoch, for each arm.
        seeds: runs behind each curve.
        final: the mean over seeds of the reference's last score; None where it has none.
        reached: for each other arm the first epoch at which its mean is at least that; None where
            no epoch is.
    """

    metric: str
    reference: str
    curves: Mapping[str, Curve]
    seeds: Mapping[str, int]
    final: float | None
    reached: Mapping[str, int | None]


def convergence(group: RunGroup) -> Convergence | None:
    """The curves of a group of linear probes; None for other runs, or where none was kept."""
    if group.recipe.get("method") != "linear_probe":
        return None
    metric = evaluated_metric(group.runs)
    if metric is None:
        return None
    curves, seeds = {}, {}
    for arm in group.arms:
        series = [each for run in group.of(arm) if (each := by_epoch(run, metric))]
        # Every epoch by itself: a mean over several would hide when a score is reached.
        curve = curve_over_seeds(series, most=None)
        if curve.steps:
            curves[arm], seeds[arm] = curve, len(series)
    if not curves:
        return None
    own = curves.get(group.reference)
    final = own.mean[-1] if own else None
    reached = {
        arm: None if final is None else first_at_least(curve.steps, curve.mean, final)
        for arm, curve in curves.items()
        if arm != group.reference
    }
    return Convergence(metric, group.reference, curves, seeds, final, reached)


def by_epoch(run: Run, metric: str) -> dict[int, float]:
    """One score by the passes over the training images that a run had done."""
    return {
        int(record["epoch"]): float(record[metric])
        for record in run.metrics
        if record["kind"] == "eval" and isinstance(record.get(metric), (int, float))
    }


def first_at_least(epochs: Sequence[float], scores: Sequence[float], wanted: float) -> int | None:
    """The first epoch at which a score is at least the one that is wanted.

    >>> first_at_least([1, 2, 3], [40.0, 50.0, 49.0], 50.0)
    2
    >>> first_at_least([1, 2, 3], [40.0, 50.0, 49.0], 50.1) is None
    True
    """
    found = (epoch for epoch, score in zip(epochs, scores, strict=True) if score >= wanted)
    first = next(found, None)
    return None if first is None else round(first)


def convergence_figure(found: Convergence) -> Figure:
    """One panel: means over seeds with bands from the lowest to the highest, by epoch.

    A thin line is the final score of the reference; a mark is where an arm first has it.
    """
    figure, (axes,) = new_figure([2.6])
    colours = arm_colours(found.curves)
    title(axes, f"{metric_label(found.metric)}, %, by epoch of the linear probe")
    for i, (arm, curve) in enumerate(found.curves.items()):
        colour, dash = colours[arm], DASHES[i % len(DASHES)]
        axes.plot(curve.steps, curve.mean, color=colour, linestyle=dash, linewidth=1.5, label=arm)
        axes.fill_between(curve.steps, curve.low, curve.high, color=colour, alpha=0.18, linewidth=0)
        epoch = found.reached.get(arm)
        if epoch is not None:
            place = [round(step) for step in curve.steps].index(epoch)
            axes.plot([epoch], [curve.mean[place]], color=colour, marker="o", markersize=4)
    if found.final is not None:
        axes.axhline(found.final, color=INK, linewidth=0.6)
    axes.set_xlabel("Epochs of the probe", fontsize=TEXT, color=INK)
    legend(figure, axes)
    return figure


def convergence_words(found: Convergence) -> str:
    """What is plotted, when each arm has caught up, and the paper's epoch."""
    over = ", ".join(f"{arm} {count}" for arm, count in found.seeds.items())
    label = metric_label(found.metric)
    words = (
        f"Score of the linear probe ({label}) by its epoch. Lines are means over seeds ({over}); "
        f"bands run from the lowest to the highest seed."
    )
    if found.final is None:
        return words
    called = in_words(found.reference)
    words += f" {called[0].upper()}{called[1:]} ends at {number(found.final)}."
    for arm, epoch in found.reached.items():
        last = found.curves[arm].steps[-1]
        at = f"never reached in {last:.0f} epochs" if epoch is None else f"reached at epoch {epoch}"
        words += f" By {arm} this is {at}."
    if "batchformer" in found.reached:
        words += (
            f" In the paper BatchFormer reaches it at epoch {PAPERS_EPOCH} of 90, with MoCo-v3 on "
            f"ImageNet."
        )
    return words


# Which updates SWAD averaged, as a table over the seeds of every arm.

KIND = "swad"
COLUMNS = {
    "first_update": "first update",
    "last_update": "last update",
    "first_evaluation": "first evaluation",
    "last_evaluation": "last evaluation",
}
NOTE = (
    " SWAD averages the weights after the updates in the table, up to the evaluations whose loss "
    "lies in the valley; where seeds differ, from the lowest to the highest."
)


def valleys(run: Run) -> dict[str, Mapping[str, Any]]:
    """Where SWAD's valley was, for every training of a run.

    Returns:
        The values of its record by the part of the run, which is empty where it is one training;
        nothing for a run without SWAD.
    """
    found = findings_of(run.result or {})
    by_part = {name.rpartition("/"): values for name, values in found.items()}
    return {part: values for (part, _, kind), values in by_part.items() if kind == KIND}


def valley_table(group: RunGroup) -> Numbers | None:
    """One row for every arm and part; None where no run has a valley."""
    rows = []
    for arm in group.arms:
        by_part: dict[str, list[Mapping[str, Any]]] = {}
        for run in group.of(arm):
            for part, values in valleys(run).items():
                by_part.setdefault(part, []).append(values)
        for part, seen in by_part.items():
            spans = [_span(values.get(key) for values in seen) for key in COLUMNS]
            converged = sum(bool(values.get("converged")) for values in seen)
            rows.append((arm, str(len(seen)), part, *spans, f"{converged} of {len(seen)}"))
    columns = ("arm", "n", "target", *COLUMNS.values(), "converged")
    return Numbers("What SWAD averaged", columns, rows) if rows else None


def _span(values: Iterable[Any]) -> str:
    """One number, or the lowest to the highest; empty where none is known."""
    known = [value for value in values if isinstance(value, (int, float))]
    if not known:
        return ""
    low, high = f"{min(known):,.0f}", f"{max(known):,.0f}"
    return low if low == high else f"{low} to {high}"
