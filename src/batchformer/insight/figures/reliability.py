"""Is a network as sure as it is right? Accuracy by confidence, and expected calibration error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from batchformer.insight.figures.canvas import (
    DASHES,
    INK,
    MARKERS,
    SMALL,
    TEXT,
    legend,
    level_lines,
    new_grid,
    title,
)
from batchformer.insight.figures.captioned import Caption, CaptionedFigure, FigureTable
from batchformer.insight.figures.networks import (
    ImageCount,
    NetworkGroup,
    arrays_by_arm,
    first_run,
    image_count,
    safe_divide,
)
from batchformer.insight.figures.text import mean_with_interval, number, over_seeds
from batchformer.insight.intervals import Summary, summary_of_known
from batchformer.insight.record import SHOTS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMES = ("reliability_count", "reliability_confidence", "reliability_correct")
GROUPS = ("all", *SHOTS)
DECIMALS = 1  # decimals of errors with their intervals, as many as fit a fifth of a page
FEWEST = 10  # bins with fewer predictions are drawn pale


@dataclass(frozen=True)
class ReliabilityOfArm:
    """Predictions of one arm in B bins of confidence, all seeds together."""

    count: NDArray[Any]  # (4, B) predictions, of all classes and of each shot group
    confidence: NDArray[Any]  # (4, B) mean of a bin, percent; NaN for an empty one
    accuracy: NDArray[Any]  # (4, B) the same
    ece: list[Summary | None]  # by group, percent, over seeds; None for an empty one
    seeds: int
    colour: str


@dataclass(frozen=True)
class Reliability:
    """Every arm, whether each shot group has a panel of its own, and how many images were seen."""

    by_arm: dict[str, ReliabilityOfArm]
    by_shots: bool
    seen: ImageCount
    ece_in_results: bool  # whether the table of results has the error over all test images

    @property
    def seeds(self) -> dict[str, int]:
        """How many networks each arm has; empty if there is one network alone."""
        counts = {arm: found.seeds for arm, found in self.by_arm.items()}
        return counts if sum(counts.values()) > 1 else {}

    @property
    def shots(self) -> list[int]:
        """Places in ``GROUPS`` of the shot groups; empty if there is only one."""
        found = [i for i in (1, 2, 3) if any(f.count[i].sum() for f in self.by_arm.values())]
        return found if len(found) > 1 else []

    @property
    def groups(self) -> list[int]:
        """Places in ``GROUPS`` of the groups that are drawn."""
        return self.shots or [0] if self.by_shots else [0]


def make(data: Reliability) -> CaptionedFigure:
    bins = [bins_table(data)]
    return CaptionedFigure("Reliability", caption(data), lambda: draw(data), tables(data), bins)


def gather(group: NetworkGroup, by_shots: bool = False) -> Reliability | None:
    found = arrays_by_arm(group, *NAMES)
    if not found:
        return None
    by_arm, colours = {}, group.colours_of(found)
    for arm, runs in found.items():
        each = [[run[name].astype(np.float64) for name in NAMES] for run in runs.values()]
        count, confidence, correct = (np.sum(parts, 0) for parts in zip(*each, strict=True))
        errors = [calibration_error(*parts) for parts in each]
        by_arm[arm] = ReliabilityOfArm(
            count,
            safe_divide(100.0 * confidence, count),
            safe_divide(100.0 * correct, count),
            [
                summary_of_known([error[i] for error in errors], (0.0, 100.0))
                for i in range(len(GROUPS))
            ],
            len(runs),
            colours[arm],
        )
    seen = image_count(group, round(float(first_run(found)["reliability_count"][0].sum())))
    return Reliability(by_arm, by_shots, seen, any("ece" in run.scores for run in group.runs))


def calibration_error(
    count: NDArray[Any], confidence: NDArray[Any], correct: NDArray[Any]
) -> NDArray[Any]:
    """Expected calibration error in percent, (G,), from sums in bins, (G, B) each.

    NaN for a group without predictions.

    >>> calibration_error(*np.array([[[2.0, 2.0]], [[0.6, 1.8]], [[0.0, 2.0]]])).round(1).tolist()
    [20.0]
    """
    total = count.sum(1)
    return safe_divide(100.0 * np.abs(confidence - correct).sum(1), total)


def draw(data: Reliability) -> Figure:
    """Accuracy by confidence above, the share of predictions in each bin below."""
    groups = data.groups
    drawn, grid = new_grid(
        2, len(groups), [2.3 if len(groups) == 1 else 1.9, 0.8], sharex=True, sharey="row"
    )
    edges = np.linspace(0, 100, next(iter(data.by_arm.values())).count.shape[1] + 1)
    for column, i in enumerate(groups):
        above, below = grid[0][column], grid[1][column]
        above.plot([0, 100], [0, 100], color=INK, linewidth=0.8)
        for j, (arm, found) in enumerate(data.by_arm.items()):
            style: Any = {"color": found.colour, "marker": MARKERS[j % len(MARKERS)]}
            style |= {"linewidth": 1.3, "markersize": 3, "clip_on": False}
            # Unclipped, a line without points is laid out as if in the figure's corner.
            style["in_layout"] = False
            dash = DASHES[j % len(DASHES)]
            enough = found.count[i] >= FEWEST
            for used, line, alpha in ((enough, dash, 1.0), (~enough, "", 0.35)):
                style |= {"linestyle": line, "alpha": alpha, "label": arm if line else None}
                above.plot(found.confidence[i][used], found.accuracy[i][used], **style)
            share = 100 * found.count[i] / max(found.count[i].sum(), 1)
            below.stairs(share, edges, color=found.colour, linestyle=dash, linewidth=1.3)
        title(above, ", ".join(["Accuracy, %"] * (column == 0) + [GROUPS[i]] * (i > 0)))
        title(below, "Share of predictions, %" if i == 0 else "Share, %" if column == 0 else "")
        for axes in (above, below):
            level_lines(axes)
            axes.tick_params(labelsize=SMALL)
        above.set(xlim=(0, 100), ylim=(0, 100), xticks=[0, 50, 100])
        below.set_ylim(bottom=0)
    where = grid[1][len(groups) // 2]
    where.set_xlabel("Confidence, %", fontsize=TEXT, color=INK)
    legend(drawn, grid[0][0])
    return drawn


def caption(data: Reliability) -> Caption:
    over = f", {over_seeds(data.seeds)} together" if data.seeds else ""
    bins = next(iter(data.by_arm.values())).count.shape[1]
    note = (
        f"Accuracy of predictions by their confidence. On the thin line a network is right as "
        f"often as it is sure; below it, it is too sure, above it not sure enough. Pale marks are "
        f"of fewer than {FEWEST} predictions."
    )
    details = (
        f"{bins} bins of confidence on {data.seen.words}{over}. The steps show how many "
        f"predictions lie in each bin."
    )
    said = ", ".join(
        f"{arm} {number(total.mean, DECIMALS)}%"
        for arm, found in data.by_arm.items()
        if (total := found.ece[0]) is not None
    )
    if said:
        details += f" Expected calibration error from the same bins: {said}."
        if data.seen.part and data.ece_in_results:
            details += " The ECE in the table of results is over all test samples, so it differs."
    return Caption.of("Line plot.", note, details)


def tables(data: Reliability) -> list[FigureTable]:
    """Expected calibration errors by arm and shot group."""
    rows = []
    columns = range(len(GROUPS)) if data.shots else [0]
    for arm, found in data.by_arm.items():
        texts = [mean_with_interval(found.ece[i], DECIMALS) for i in columns]
        rows.append((arm, str(data.seeds.get(arm, "")), *texts))
    names = ("arm", "n", *(GROUPS[i] for i in columns))
    return [FigureTable("Expected calibration error, %", names, rows)]


def bins_table(data: Reliability) -> FigureTable:
    """The bins of all classes."""
    rows = [
        (arm, f"{count:,.0f}", number(confidence), number(accuracy))
        for arm, found in data.by_arm.items()
        for count, confidence, accuracy in zip(
            found.count[0], found.confidence[0], found.accuracy[0], strict=True
        )
        if count
    ]
    return FigureTable("Bins of confidence", ("arm", "predictions", "confidence", "accuracy"), rows)
