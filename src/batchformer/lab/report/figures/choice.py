"""The harmonic mean on validation classes by epoch, and the epoch that it chose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from batchformer.insight.figures.canvas import INK, TEXT, legend, new_figure, title
from batchformer.insight.figures.captioned import Caption, CaptionedFigure, FigureTable
from batchformer.insight.figures.text import number, over_seeds
from batchformer.lab.report.figures.curves import Curve, curve_over_seeds, draw_curve
from batchformer.lab.report.results.configuration import RunGroup
from batchformer.lab.report.results.names import arm_colours, sorted_arms

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NEEDED = frozenset({"choice_epochs", "choice_hm", "chosen_epoch"})


@dataclass(frozen=True)
class Choices:
    """For each arm the score by epoch, and for every seed the chosen epoch with its score."""

    curves: dict[str, Curve]
    chosen: dict[str, dict[int, tuple[int, float]]]


def make(data: Choices) -> CaptionedFigure:
    over = over_seeds({arm: len(each) for arm, each in data.chosen.items()})
    note = (
        f"Score of a first training on the classes of validation, which it leaves out. Lines are "
        f"means over {over}, bands run from the lowest to the highest seed, dots are the epochs "
        f"chosen."
    )
    details = (
        "A second training on all seen classes ends at the chosen epoch, and it alone is scored "
        "on the test."
    )
    rows = [
        (arm, str(seed), str(epoch), number(score))
        for arm, each in data.chosen.items()
        for seed, (epoch, score) in each.items()
    ]
    return CaptionedFigure(
        "The choice of the epoch",
        Caption.of("Line plot.", note, details),
        lambda: draw(data),
        (),
        [FigureTable("Chosen", ("arm", "seed", "epoch", "HM on validation, %"), rows)],
    )


def gather(group: RunGroup) -> Choices | None:
    """The scores and chosen epochs that runs have kept; None if no run has them."""
    tried: dict[str, list[dict[int, float]]] = {}
    chosen: dict[str, dict[int, tuple[int, float]]] = {}
    for run in sorted(group.runs, key=lambda run: run.seed):
        if not set(run.figures) >= NEEDED:
            continue
        epochs, scores = run.figures["choice_epochs"].tolist(), run.figures["choice_hm"].tolist()
        by_epoch = dict(zip(epochs, scores, strict=True))
        epoch = int(run.figures["chosen_epoch"])
        tried.setdefault(run.arm, []).append(by_epoch)
        chosen.setdefault(run.arm, {})[run.seed] = epoch, by_epoch[epoch]
    if not tried:
        return None
    arms = sorted_arms(tried)
    curves = {arm: curve_over_seeds(tried[arm]) for arm in arms}
    return Choices(curves, {arm: chosen[arm] for arm in arms})


def draw(data: Choices) -> Figure:
    """One panel: means over seeds with bands from the lowest to the highest; dots are choices."""
    figure, (axes,) = new_figure([2.6])
    title(axes, "HM on classes of validation, %")
    colours = arm_colours(data.curves)
    for i, (arm, curve) in enumerate(data.curves.items()):
        draw_curve(axes, arm, curve, colours[arm], i)
        epochs, scores = zip(*data.chosen[arm].values(), strict=True)
        axes.plot(epochs, scores, color=colours[arm], linestyle="", marker="o", markersize=4)
    axes.set_xlabel("Epoch", fontsize=TEXT, color=INK)
    legend(figure, axes)
    return figure
