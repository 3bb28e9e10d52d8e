"""Training curves: the loss and a score by update, and which updates SWAD averaged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from batchformer.insight.figures.canvas import legend, new_figure, title
from batchformer.insight.figures.captioned import Caption, CaptionedFigure, FigureTable
from batchformer.insight.figures.text import number, over_seeds, value_range
from batchformer.lab.config.methods import loss_change, without_batchformer
from batchformer.lab.report.figures.curves import (
    Curve,
    curve_over_seeds,
    draw_curve,
    evaluated_metric,
)
from batchformer.lab.report.results.configuration import RunGroup
from batchformer.lab.report.results.names import arm_colours, metric_label
from batchformer.lab.report.results.runs import RecordedRun
from batchformer.lab.runs.folder import findings_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

VALLEY_COLUMNS = {
    "first_update": "first update",
    "last_update": "last update",
    "first_evaluation": "first evaluation",
    "last_evaluation": "last evaluation",
}
VALLEY_NOTE = (
    "SWAD averages the weights after the updates in the table, up to the evaluations whose loss "
    "lies in the valley; where seeds differ, from the lowest to the highest."
)


class Line(NamedTuple):
    """A value that is drawn by update: its kind of record, its key and its label."""

    kind: str
    value: str
    label: str


def gather(group: RunGroup) -> RunGroup | None:
    """The group itself, if its runs have logged enough for a line; else None."""
    return group if lines_of(group) else None


def make(group: RunGroup) -> CaptionedFigure:
    lines, averaged = lines_of(group), valley_table(group)
    return CaptionedFigure(
        "Training",
        caption(group, lines, averaged=averaged is not None),
        lambda: draw(group),
        () if averaged is None else (averaged,),
        [_updates_table(group, lines)],
    )


def lines_of(group: RunGroup) -> list[Line]:
    """The loss and the evaluated metric, each if a run has two values of it: a line needs two."""
    found = []
    if any(len(run.series("train", "loss")) >= 2 for run in group.runs):
        found.append(Line("train", "loss", "Training loss"))
    metric = evaluated_metric(group.runs, fewest=2)
    if metric is not None:
        # With SWAD, scores by update are not those of the averaged network, which is reported.
        swad = " without SWAD" if (group.recipe.get("hyper") or {}).get("swad") else ""
        found.append(Line("eval", metric, f"{metric_label(metric)}{swad}"))
    return found


def draw(group: RunGroup) -> Figure:
    """A panel for each line: its mean and its range over seeds, for every arm."""
    labels = [(line, line.label + ", %" * (line.kind == "eval")) for line in lines_of(group)]
    figure, panels = new_figure([1.7] * len(labels))
    colours = arm_colours(group.arms)
    for axes, (line, label) in zip(panels, labels, strict=True):
        title(axes, label)
        for i, (arm, curve) in enumerate(_curves(group, line).items()):
            draw_curve(axes, arm, curve, colours[arm], i)
    title(panels[-1], f"{labels[-1][1]}, by update")
    legend(figure, panels[0])
    return figure


def caption(group: RunGroup, lines: list[Line], *, averaged: bool) -> Caption:
    names = [f"evaluated {line.label}" if line.kind == "eval" else line.label for line in lines]
    what = " and ".join(names)
    over = over_seeds({arm: len(group.of(arm)) for arm in group.arms})
    note = (
        f"{what[0].upper()}{what[1:]} by update. Lines are means over {over}; bands run from the "
        f"lowest to the highest seed."
    )
    details = []
    if lines[0].kind == "train" and not without_batchformer(group.recipe.get("method")):
        details.append(
            "The loss with BatchFormer covers both streams, so losses of different arms need not "
            "be comparable."
        )
    if lines[0].kind == "train":
        details += [*scales_of_losses(group), *change_of_loss(group)]
    details += [VALLEY_NOTE] * averaged
    return Caption.of("Line plot.", note, " ".join(details))


def _curves(group: RunGroup, line: Line) -> dict[str, Curve]:
    return {
        arm: curve_over_seeds([run.series(line.kind, line.value) for run in group.of(arm)])
        for arm in group.arms
    }


def _updates_table(group: RunGroup, lines: list[Line]) -> FigureTable:
    """At most five rows for each curve, for a terminal: its ends, and points evenly between."""
    rows = []
    for line in lines:
        for arm, curve in _curves(group, line).items():
            points = list(zip(*curve, strict=True))
            for i in sorted({round(k * (len(points) - 1) / 4) for k in range(5)} if points else ()):
                step, mean, low, high = points[i]
                bounds = f"{number(low)} to {number(high)}"
                rows.append((arm, line.label, f"{step:,.0f}", number(mean), bounds))
    return FigureTable("By update", ("arm", "value", "update", "mean", "seeds"), rows)


def scales_of_losses(group: RunGroup) -> list[str]:
    """Sentences on arms whose losses are on another scale than the others'."""
    summed: dict[str, list[str]] = {}
    multiplied = []
    for arm in group.arms:
        run = group.of(arm)[0]
        factor = _stream_factor(run.trained.get("module") or {})
        if factor != 1:
            summed.setdefault(f"{factor:g}", []).append(arm)
        multiplier = _loss_multiplier(run.trained) / _loss_multiplier(run.recipe)
        if multiplier != 1:
            multiplied.append(
                f"The loss of {arm} is shown before it is multiplied by {multiplier:g}, on the "
                f"scale of the baseline's."
            )
    said = [
        f"The loss of {' and '.join(arms)} is {factor} times the mean of both streams, and not "
        f"comparable with the others."
        for factor, arms in summed.items()
    ]
    return said + multiplied


def _loss_multiplier(recipe: Mapping[str, Any]) -> float:
    return float((recipe.get("train") or {}).get("loss_multiplier", 1.0))


def _stream_factor(module: Mapping[str, Any]) -> float:
    """The logged loss divided by the mean of both streams; 1 if there is one stream."""
    if module.get("streams") == "mixed_only" or module.get("enabled") is False:
        return 1.0
    both = 1.0 + float(module.get("mixed_weight", 1.0))
    scale = module.get("loss_scale", "mean")
    return {"sum": both, "official": 1.5 * both}.get(scale, 1.0)


def change_of_loss(group: RunGroup) -> list[str]:
    """A sentence if a method changed its loss within the logged updates; else empty."""
    setting, what = loss_change(group.recipe.get("method")) or ("", "")
    hyper = group.recipe.get("hyper") or {}
    epoch = hyper.get(setting)
    # Before this epoch the penalty's weight is 1, so a penalty of 1 changes nothing.
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


def valleys(run: RecordedRun) -> dict[str, Mapping[str, Any]]:
    """SWAD's valleys by part of a run ("" if the run is one training); {} without SWAD."""
    found = findings_of(run.result or {})
    by_part = {name.rpartition("/"): values for name, values in found.items()}
    return {part: values for (part, _, kind), values in by_part.items() if kind == "swad"}


def valley_table(group: RunGroup) -> FigureTable | None:
    """One row for every arm and part; None where no run has a valley."""
    rows = []
    for arm in group.arms:
        by_part: dict[str, list[Mapping[str, Any]]] = {}
        for run in group.of(arm):
            for part, values in valleys(run).items():
                by_part.setdefault(part, []).append(values)
        for part, seen in by_part.items():
            spans = [_span(values.get(key) for values in seen) for key in VALLEY_COLUMNS]
            converged = sum(bool(values.get("converged")) for values in seen)
            rows.append((arm, str(len(seen)), part, *spans, f"{converged} of {len(seen)}"))
    columns = ("arm", "n", "target", *VALLEY_COLUMNS.values(), "converged")
    return FigureTable("What SWAD averaged", columns, rows) if rows else None


def _span(values: Iterable[Any]) -> str:
    known = [value for value in values if isinstance(value, (int, float))]
    return value_range(known, "{:,.0f}".format) if known else ""
