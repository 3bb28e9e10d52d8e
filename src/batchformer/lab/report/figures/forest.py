"""Forest plot of an effect: its mean and 95% interval for each recipe, and below over all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from batchformer.insight.figures.canvas import INK, TEXT, new_figure, write
from batchformer.insight.figures.captioned import Caption, CaptionedFigure
from batchformer.insight.figures.text import seeds
from batchformer.insight.intervals import FEWEST_SEEDS
from batchformer.lab.report.results.names import LOWER_IS_BETTER, arm_colours, metric_label
from batchformer.lab.report.results.pooling import Effect
from batchformer.lab.report.results.words import with_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROW = 0.36  # inches: a name, and below it its interval
LIFT = 0.2  # from an interval up to the foot of its name, in rows
THICKNESS = 0.2  # half the height of the diamond, in rows


def make(arm: str, reference: str, metric: str, effect: Effect) -> CaptionedFigure:
    """The figure of one effect, with its caption."""
    label = metric_label(metric)
    better = "lower" if metric in LOWER_IS_BETTER else "higher"
    note = (
        f"{arm} - {reference} on {label}, in percentage points; {better} is better. Dots are means "
        f"over paired seeds, bars their 95% t intervals. The diamond is the mean over recipes, as "
        f"wide as its interval."
    )
    if effect.printed:
        note += " Hollow: the paper."
    details = (
        f"An interval needs {FEWEST_SEEDS} seeds. Each recipe counts once in the mean over recipes."
    )
    return CaptionedFigure(
        f"{label}: {arm} - {reference}",
        Caption.of("Forest plot.", note, details, f"{described(effect)}."),
        lambda: draw(arm, effect),
    )


def described(effect: Effect) -> str:
    """Every row with its numbers, for a reader who cannot see it."""
    rows = [f"{name}: {with_interval(d.paired)}" for name, d in effect.recipes.items()]
    return "; ".join([*rows, f"over all: {with_interval(effect.pooled)}"])


def draw(arm: str, effect: Effect) -> Figure:
    """Rows from top to bottom: the recipes in their order, then all of them."""
    figure, (axes,) = new_figure([ROW * (len(effect.recipes) + 1.5)])
    colour = arm_colours([arm])[arm]
    for i, (name, difference) in enumerate(effect.recipes.items()):
        found = difference.paired
        _name(axes, -i, f"{name}, {seeds(found.n)}")
        if found.low is not None and found.high is not None:
            axes.hlines(-i, found.low, found.high, color=colour, linewidth=1.5, alpha=0.8)
        axes.plot(found.difference, -i, color=colour, marker="o", markersize=5)
        if difference.paper_effect is not None:
            hollow: Any = {"marker": "o", "markersize": 6, "markerfacecolor": "none"}
            axes.plot(difference.paper_effect, -i, color=colour, **hollow)
    last, found_all = -len(effect.recipes), effect.pooled
    _name(axes, last, f"Over all, {seeds(found_all.seeds)}", weight="bold")
    middle = found_all.difference
    low = middle if found_all.low is None else found_all.low
    high = middle if found_all.high is None else found_all.high
    edges = [last, last + THICKNESS, last, last - THICKNESS]
    axes.fill([low, middle, high, middle], edges, color=colour, linewidth=1.0)
    axes.set_ylim(last - 0.5, 0.8)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x", color=INK, alpha=0.2, linewidth=0.6)
    return figure


def _name(axes: Axes, row: float, text: str, weight: str = "normal") -> None:
    """Write a name above its row, where it costs no width, and mark zero below it."""
    axes.vlines(0, row - LIFT, row + LIFT, color=INK, linewidth=0.8)
    across = axes.get_yaxis_transform()
    style: Any = {"fontsize": TEXT, "weight": weight, "va": "bottom", "transform": across}
    write(axes, 0, row + LIFT, text, **style)
