"""Who attends to whom: classes by frequency, every head, and the flow between shot groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from batchformer.insight.record import SHOTS
from batchformer.report.attention_numbers import Attention, OfArm, gather
from batchformer.report.canvas import INK, title
from batchformer.report.configuration import Group
from batchformer.report.panels import DIVERGING, SMALL, bare, cells, count_ticks, new_grid
from batchformer.report.shown import Numbers, Shown, Words
from batchformer.report.words import interval, number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HEADS_A_ROW = 4
LEAST_REACH = 0.1
"""Of the colours to each side of uniform attention, as a power of 2: no noise in full colour."""


def figure(data: Attention) -> Figure:
    """The mean over heads, the flow between shot groups, then every head; a colour scale each."""
    found = data.by_arm[data.main]
    reach = _reach(found.ratio, found.flow_ratio)
    heads = found.heads if len(found.heads) > 1 else found.heads[:0]
    rows = -(-len(heads) // HEADS_A_ROW)
    drawn, grid = new_grid(1, 1, [2.5 + 1.25 * rows + 0.35 * bool(rows)])
    grid[0][0].remove()
    above, below = drawn, None
    if rows:
        parts: Any = drawn.subfigures(2, 1, height_ratios=[2.5, 1.25 * rows + 0.35])
        above, below = parts[0], parts[1]
        for part in parts:
            part.patch.set_alpha(0)
    left, right = above.subplots(1, 2)
    image = _map(left, found.ratio, reach)
    title(left, "Mean over heads")
    ticks, labels = count_ticks(data.counts.tolist(), 3)
    for axis in (left.xaxis, left.yaxis):
        axis.set_ticks(ticks, labels)
    left.tick_params(colors=INK, labelsize=SMALL, length=3)
    left.set_ylabel("From: training images", fontsize=SMALL, color=INK)
    left.set_xlabel("To: training images", fontsize=SMALL, color=INK)
    _flow_cells(right, found, reach)
    _bar(above, image, [left, right], reach)
    if below is not None:
        reach = _reach(heads)
        small = below.subplots(rows, HEADS_A_ROW, squeeze=False).ravel()
        for axes in small:
            bare(axes)
            axes.set_visible(False)
        for i, (axes, ratio) in enumerate(zip(small, heads, strict=False)):
            axes.set_visible(True)
            image = _map(axes, ratio, reach)
            title(axes, f"Head {i + 1}")
        _bar(below, image, list(small), reach)
    return drawn


def _bar(figure: Any, image: Any, panels: list[Axes], reach: float) -> None:
    bar = figure.colorbar(image, ax=panels, location="bottom", shrink=0.6, aspect=30)
    bar.set_ticks([-reach, 0, reach], labels=[times(2**-reach), "uniform", times(2**reach)])
    bar.ax.tick_params(colors=INK, labelsize=SMALL, length=0)
    bar.outline.set_visible(False)


def _flow_cells(axes: Axes, found: OfArm, reach: float) -> None:
    present = [i for i in range(len(SHOTS)) if np.isfinite(found.flow[i]).any()]
    ratio, flow = (part[np.ix_(present, present)] for part in (found.flow_ratio, found.flow))
    texts = [
        [f"{times(r)}\n{100 * f:.0f}%" for r, f in zip(*row, strict=True)]
        for row in zip(ratio, flow, strict=True)
    ]
    names = [SHOTS[i] for i in present]
    limits = (-reach, reach)
    cells(axes, _in_colours(ratio, reach), texts, names, colours=DIVERGING, limits=limits)
    axes.set_aspect("equal")
    axes.tick_params(colors=INK, labelsize=SMALL)
    title(axes, "Between shot groups")


def _in_colours(ratio: NDArray[Any], reach: float) -> NDArray[Any]:
    """Powers of 2; no attention at all has the last colour, a pair that was not seen has none."""
    with np.errstate(divide="ignore"):
        powers: NDArray[Any] = np.clip(np.log2(ratio), -reach, reach)
    return powers


def _map(axes: Axes, ratio: NDArray[Any], reach: float) -> Any:
    for spine in axes.spines.values():
        spine.set_visible(False)
    return axes.imshow(
        np.ma.masked_invalid(_in_colours(ratio, reach)),
        cmap=DIVERGING,
        vmin=-reach,
        vmax=reach,
        interpolation="none",
    )


def _reach(*parts: NDArray[Any]) -> float:
    """How far the colours go to each side, in powers of 2; the last hundredth is cut off."""
    values = np.concatenate([part.ravel() for part in parts])
    values = np.abs(np.log2(values[np.isfinite(values) & (values > 0)]))
    return max(float(np.quantile(values, 0.99)), LEAST_REACH) if values.size else 1.0


def times(ratio: float) -> str:
    """A ratio as it is written."""
    return f"{ratio:.2f}×" if ratio < 9.995 else f"{ratio:.0f}×"


def words(data: Attention) -> Words:
    """What is plotted, and where attention goes."""
    found = data.by_arm[data.main]
    maps = "every class a row and a column"
    if data.together > 1:
        maps = f"rows and columns of up to {data.together} classes"
    seeds = (
        f"mean over {found.seeds} seeds; heads are of the first" if found.seeds > 1 else "1 seed"
    )
    note = (
        f"Attention of {data.main} on test images in batches of {data.batch:.0f}, {maps} from the "
        f"most to the least training images ({seeds}). Colours are ratios to uniform attention; in "
        f"the cells below each ratio is the part of a sample's attention that goes to others of "
        f"that group."
    )
    said = "; ".join(
        f"to {target} {100 * share.measured.mean:.1f}% (uniform {100 * share.uniform:.1f}%)"
        for target, share in found.shares.items()
    )
    return Words(f"{note} A sample gives {said}.", f"Heat maps. {note} A sample gives {said}.")


def numbers(data: Attention) -> list[Numbers]:
    """Shares to itself, its class and others; and the flow between shot groups of each arm."""
    rows = []
    for arm, found in data.by_arm.items():
        for target, share in found.shares.items():
            measured = share.measured
            low, high = (None if v is None else 100 * v for v in (measured.low, measured.high))
            ratio = measured.mean / share.uniform if share.uniform else float("nan")
            rows.append(
                (
                    arm,
                    target,
                    number(100 * measured.mean),
                    interval(low, high),
                    number(100 * share.uniform),
                    times(ratio),
                )
            )
    columns = ("arm", "attends to", "%", "95% interval", "uniform, %", "ratio")
    tables = [Numbers("Where attention goes", columns, rows)]
    for arm, found in data.by_arm.items():
        lines = [
            (name, *(f"{times(r)} ({100 * f:.1f}%)" for r, f in zip(ratio, flow, strict=True)))
            for name, ratio, flow in zip(SHOTS, found.flow_ratio, found.flow, strict=True)
            if np.isfinite(flow).any()
        ]
        groups = ("from", *(f"to {name}" for name in SHOTS))
        tables.append(Numbers(f"{arm}: flow between shot groups", groups, lines))
    return tables


def shown(group: Group, arm: str | None = None) -> Shown | None:
    """The figure with its words and numbers."""
    data = gather(group, arm)
    if data is None:
        return None
    first, *flows = numbers(data)
    return Shown("Attention between samples", words(data), lambda: figure(data), [first], flows)
