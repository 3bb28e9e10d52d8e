"""Curves of zero-shot learning: seen against unseen as a bias moves, and the chosen epoch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from batchformer.lab.report.figures.canvas import DASHES, INK, TEXT, legend, new_figure, title
from batchformer.lab.report.figures.shown import Numbers, Shown, Words
from batchformer.lab.report.figures.training import Curve, curve_over_seeds
from batchformer.lab.report.results.configuration import RunGroup, one_group
from batchformer.lab.report.results.names import arm_colours, sorted_arms
from batchformer.lab.report.results.runs import Run
from batchformer.lab.report.results.words import number

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

# Accuracy on seen against unseen pairs or classes, as a bias moves predictions to the unseen.

#: Points at which the curves of several seeds are averaged.
POINTS = 101


@dataclass(frozen=True)
class BiasCurves:
    """For each arm the curve of every seed, as (unseen, seen) accuracies in percent, (B,) each.

    Args:
        by_arm: the curves.
        of: what is seen or unseen, pairs or classes.
    """

    by_arm: dict[str, list[tuple[NDArray[Any], NDArray[Any]]]]
    of: str = "pairs"

    def mean(self, arm: str) -> tuple[NDArray[Any], NDArray[Any]]:
        """The mean accuracy on seen ones over seeds, where every seed has one, (POINTS,) each."""
        import numpy as np

        curves = self.by_arm[arm]
        unseen = np.linspace(
            max(float(x.min()) for x, _ in curves), min(float(x.max()) for x, _ in curves), POINTS
        )
        rising = [_rising(x, y) for x, y in curves]
        return unseen, np.mean([np.interp(unseen, x, y) for x, y in rising], 0)


def bias_curves(runs: Iterable[Run]) -> BiasCurves | None:
    """The curves that runs have kept; None if there is none."""
    found: dict[str, list[tuple[NDArray[Any], NDArray[Any]]]] = {}
    of = "pairs"
    for run in runs:
        if run.state == "finished" and {"bias_unseen", "bias_seen"} <= set(run.figures):
            curve = run.figures["bias_unseen"], run.figures["bias_seen"]
            found.setdefault(run.arm, []).append(curve)
            of = str(run.figures.get("bias_of", of))
    return BiasCurves({arm: found[arm] for arm in sorted_arms(found)}, of) if found else None


def bias_figure(curves: BiasCurves) -> Figure:
    """One panel: thin lines are seeds, thick ones their means."""
    figure, (axes,) = new_figure([2.8])
    colours = arm_colours(curves.by_arm)
    title(axes, f"Accuracy on seen {curves.of}, %")
    for i, (arm, each) in enumerate(curves.by_arm.items()):
        for x, y in each if len(each) > 1 else []:
            axes.plot(*_rising(x, y), color=colours[arm], linewidth=0.6, alpha=0.45)
        style = DASHES[i % len(DASHES)]
        axes.plot(*curves.mean(arm), color=colours[arm], linewidth=1.6, linestyle=style, label=arm)
    axes.set_xlabel(f"Accuracy on unseen {curves.of}, %", fontsize=TEXT, color=INK)
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    legend(figure, axes)
    return figure


def seen_against_unseen(runs: Iterable[Run]) -> Figure:
    """The figure of the runs of one configuration."""
    group = one_group(runs)
    curves = bias_curves(group.runs)
    if curves is None:
        raise ValueError("No run kept its curve (bias_seen and bias_unseen in figures.npz).")
    return bias_figure(curves)


def _rising(unseen: NDArray[Any], seen: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """The curve in the order of its first coordinate; the order of equals is kept."""
    import numpy as np

    order = np.argsort(unseen, kind="stable")
    return unseen[order], seen[order]


# The harmonic mean on classes of validation by epoch, and the epoch that it chose.

NEEDED = frozenset({"choice_epochs", "choice_hm", "chosen_epoch"})


@dataclass(frozen=True)
class Choices:
    """Of each arm.

    Args:
        curves: the score by epoch, over seeds.
        chosen: for every seed, in ascending order, the epoch that was chosen and its score.
    """

    curves: dict[str, Curve]
    chosen: dict[str, dict[int, tuple[int, float]]]


def choices(runs: Iterable[Run]) -> Choices | None:
    """What finished runs have kept of their choice; None if there is none."""
    tried: dict[str, list[dict[int, float]]] = {}
    chosen: dict[str, dict[int, tuple[int, float]]] = {}
    for run in sorted(runs, key=lambda run: run.seed):
        if run.state != "finished" or not set(run.figures) >= NEEDED:
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


def choice_figure(found: Choices) -> Figure:
    """One panel: means over seeds with bands from the lowest to the highest; dots are choices."""
    figure, (axes,) = new_figure([2.6])
    colours = arm_colours(found.curves)
    title(axes, "HM on classes of validation, %")
    for i, (arm, curve) in enumerate(found.curves.items()):
        colour, dash = colours[arm], DASHES[i % len(DASHES)]
        axes.plot(curve.steps, curve.mean, color=colour, linestyle=dash, linewidth=1.5, label=arm)
        axes.fill_between(curve.steps, curve.low, curve.high, color=colour, alpha=0.18, linewidth=0)
        epochs, scores = zip(*found.chosen[arm].values(), strict=True)
        axes.plot(epochs, scores, color=colour, linestyle="", marker="o", markersize=4)
    axes.set_xlabel("Epoch", fontsize=TEXT, color=INK)
    legend(figure, axes)
    return figure


def shown(group: RunGroup) -> Shown | None:
    """The figure of a group, where its runs chose an epoch."""
    found = choices(group.runs)
    if found is None:
        return None
    over = ", ".join(f"{arm} {len(each)}" for arm, each in found.chosen.items())
    note = (
        f"A first training leaves out the classes of validation, which are its unseen ones. Lines "
        f"are means over seeds ({over}), bands run from the lowest to the highest seed, dots are "
        f"the epochs chosen. A second training on all seen classes ends at the chosen epoch, and "
        f"it alone is scored on the test."
    )
    rows = [
        (arm, str(seed), str(epoch), number(score))
        for arm, each in found.chosen.items()
        for seed, (epoch, score) in each.items()
    ]
    table = Numbers("Chosen", ("arm", "seed", "epoch", "HM on validation, %"), rows)
    return Shown(
        "The choice of the epoch",
        Words(note, f"Line plot. {note}"),
        lambda: choice_figure(found),
        (),
        [table],
    )
