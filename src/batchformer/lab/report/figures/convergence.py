"""How fast a linear probe learns: scores by epoch, and when it has the reference's final score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from batchformer.insight.figures.canvas import INK, TEXT, legend, new_figure, title
from batchformer.insight.figures.captioned import Caption, CaptionedFigure, FigureTable
from batchformer.insight.figures.text import number, over_seeds
from batchformer.lab.config.arms import MAIN
from batchformer.lab.config.methods import methods_that
from batchformer.lab.config.settings import Probe
from batchformer.lab.report.figures.curves import (
    Curve,
    curve_over_seeds,
    draw_curve,
    evaluated_metric,
)
from batchformer.lab.report.results.configuration import RunGroup
from batchformer.lab.report.results.names import arm_colours, in_words, metric_label

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAPERS_EPOCH = 38
"""Epoch of the probe at which, by the paper's figure, MoCo-v3 with BatchFormer has the score that
MoCo-v3 alone has after all 90."""


@dataclass(frozen=True)
class Convergence:
    """Scores of probes by epoch, of all arms of a group."""

    metric: str
    reference: str  # the arm whose final score is to be reached
    curves: Mapping[str, Curve]  # mean, least and greatest over seeds by epoch, for each arm
    seeds: Mapping[str, int]  # runs behind each curve
    final: float | None  # the mean over seeds of the reference's last score; None where it has none
    # For each other arm the first epoch at which its mean is at least `final`; None if never
    reached: Mapping[str, int | None]


def make(data: Convergence) -> CaptionedFigure:
    rows = [
        (arm, f"{epoch:.0f}", number(mean))
        for arm, curve in data.curves.items()
        for epoch, mean in zip(curve.steps, curve.mean, strict=True)
    ]
    return CaptionedFigure(
        "Convergence of the probe",
        caption(data),
        lambda: draw(data),
        (),
        [FigureTable("By epoch", ("arm", "epoch", metric_label(data.metric)), rows)],
    )


def gather(group: RunGroup) -> Convergence | None:
    """The curves of a group of linear probes; None for other runs, or where none was kept."""
    if group.recipe.get("method") not in methods_that(lambda entry: Probe in entry.settings):
        return None
    metric = evaluated_metric(group.runs)
    if metric is None:
        return None
    curves, seeds = {}, {}
    for arm in group.arms:
        series = [run.series("eval", metric, by="epoch") for run in group.of(arm)]
        series = [each for each in series if each]
        # Keep every epoch: a mean over several would hide when a score is reached.
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


def draw(data: Convergence) -> Figure:
    """One panel: means over seeds with bands from the lowest to the highest, by epoch.

    A thin line is the final score of the reference; a mark is where an arm first has it.
    """
    figure, (axes,) = new_figure([2.6])
    title(axes, f"{metric_label(data.metric)}, %, by epoch of the linear probe")
    colours = arm_colours(data.curves)
    for i, (arm, curve) in enumerate(data.curves.items()):
        draw_curve(axes, arm, curve, colours[arm], i)
        epoch = data.reached.get(arm)
        if epoch is not None:
            place = [round(step) for step in curve.steps].index(epoch)
            axes.plot([epoch], [curve.mean[place]], color=colours[arm], marker="o", markersize=4)
    if data.final is not None:
        axes.axhline(data.final, color=INK, linewidth=0.6)
    axes.set_xlabel("Epochs of the probe", fontsize=TEXT, color=INK)
    legend(figure, axes)
    return figure


def caption(data: Convergence) -> Caption:
    label = metric_label(data.metric)
    note = (
        f"Score of the linear probe ({label}) by its epoch. Lines are means over "
        f"{over_seeds(data.seeds)}; bands run from the lowest to the highest seed."
    )
    if data.final is None:
        return Caption.of("Line plot.", note)
    called = in_words(data.reference)
    words = f"{called[0].upper()}{called[1:]} ends at {number(data.final)}."
    for arm, epoch in data.reached.items():
        last = data.curves[arm].steps[-1]
        at = f"never reached in {last:.0f} epochs" if epoch is None else f"reached at epoch {epoch}"
        words += f" By {arm} this is {at}."
    if MAIN in data.reached:
        words += (
            f" In the paper BatchFormer reaches it at epoch {PAPERS_EPOCH} of 90, with MoCo-v3 on "
            f"ImageNet."
        )
    return Caption.of("Line plot.", note, words)
