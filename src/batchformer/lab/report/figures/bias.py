"""Accuracy on seen against unseen pairs or classes, as a bias moves predictions to the unseen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from batchformer.insight.figures.canvas import DASHES, INK, TEXT, legend, new_figure, title
from batchformer.insight.figures.captioned import Caption, CaptionedFigure, FigureTable
from batchformer.insight.figures.text import number, over_seeds
from batchformer.lab.report.results.configuration import RunGroup
from batchformer.lab.report.results.names import arm_colours, sorted_arms

if TYPE_CHECKING:
    from matplotlib.figure import Figure

POINTS = 101  # places at which the curves of several seeds are averaged


@dataclass(frozen=True)
class BiasCurves:
    """For each arm the curve of every seed: (unseen, seen) accuracies in percent, (B,) each.

    A curve goes from the least to the greatest accuracy on unseen ones.
    """

    by_arm: dict[str, list[tuple[NDArray[Any], NDArray[Any]]]]
    of: str = "pairs"  # what is seen or unseen: pairs or classes

    def mean(self, arm: str) -> tuple[NDArray[Any], NDArray[Any]]:
        """Unseen accuracies that all seeds reach, and mean seen accuracy there, (POINTS,) each."""
        curves = self.by_arm[arm]
        first, last = max(float(x[0]) for x, _ in curves), min(float(x[-1]) for x, _ in curves)
        unseen = np.linspace(first, last, POINTS)
        return unseen, np.mean([np.interp(unseen, x, y) for x, y in curves], 0)


def make(data: BiasCurves) -> CaptionedFigure:
    over = over_seeds({arm: len(each) for arm, each in data.by_arm.items()})
    several = max(map(len, data.by_arm.values())) > 1
    reach = ", as far as all of them reach" if several else ""
    note = (
        f"A bias on the scores of unseen {data.of} moves predictions from seen {data.of} to "
        f"unseen ones. Thin lines are seeds, thick ones means over {over}{reach}. AUC is the area "
        f"under the curve."
    )
    rows = []
    for arm in data.by_arm:
        unseen, seen = data.mean(arm)
        places = range(0, len(unseen), (len(unseen) - 1) // 5)
        rows += [(arm, number(float(unseen[i])), number(float(seen[i]))) for i in places]
    return CaptionedFigure(
        f"Seen and unseen {data.of}",
        Caption.of("Line plot.", note),
        lambda: draw(data),
        (),
        [FigureTable("Along the mean curve, %", ("arm", "unseen", "seen"), rows)],
    )


def gather(group: RunGroup) -> BiasCurves | None:
    """The curves that runs have kept; None if there is none."""
    found: dict[str, list[tuple[NDArray[Any], NDArray[Any]]]] = {}
    of = "pairs"
    for run in group.runs:
        if {"bias_unseen", "bias_seen"} <= set(run.figures):
            unseen, seen = run.figures["bias_unseen"], run.figures["bias_seen"]
            order = np.argsort(unseen, kind="stable")
            found.setdefault(run.arm, []).append((unseen[order], seen[order]))
            of = str(run.figures.get("bias_of", of))
    return BiasCurves({arm: found[arm] for arm in sorted_arms(found)}, of) if found else None


def draw(data: BiasCurves) -> Figure:
    """One panel: thin lines are seeds, thick ones their means."""
    figure, (axes,) = new_figure([2.8])
    colours = arm_colours(data.by_arm)
    title(axes, f"Accuracy on seen {data.of}, %")
    for i, (arm, each) in enumerate(data.by_arm.items()):
        for x, y in each if len(each) > 1 else []:
            axes.plot(x, y, color=colours[arm], linewidth=0.6, alpha=0.45)
        style = DASHES[i % len(DASHES)]
        axes.plot(*data.mean(arm), color=colours[arm], linewidth=1.6, linestyle=style, label=arm)
    axes.set_xlabel(f"Accuracy on unseen {data.of}, %", fontsize=TEXT, color=INK)
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    legend(figure, axes)
    return figure
