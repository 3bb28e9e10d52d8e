"""Who attends to whom: classes by frequency, every head, and the flow between shot groups.

Everything is measured against uniform attention, by which every sample of a batch of N, itself
included, has the weight 1 / N.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from batchformer.insight.figures.canvas import (
    DIVERGING,
    INK,
    SMALL,
    bare,
    cells,
    count_ticks,
    new_grid,
    title,
)
from batchformer.insight.figures.captioned import Caption, CaptionedFigure, FigureTable
from batchformer.insight.figures.networks import (
    NetworkGroup,
    arrays_by_arm,
    class_names,
    image_count,
    main_arm,
    mean_of_known,
    safe_divide,
)
from batchformer.insight.figures.text import interval, number
from batchformer.insight.intervals import Summary, summary
from batchformer.insight.record import SHOTS, InsightArrays

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAMES = (
    *("train_counts", "bin_of_class", "bin_pairs", "shot_pairs", "attention", "attention_shots"),
    *("attention_self", "attention_same", "attention_other"),
)
TARGETS = dict(zip(("itself", "others of its class", "other classes"), NAMES[-3:], strict=True))
"""What a sample attends to, and the array that has it."""
MOST_NAMES, HEADS_A_ROW = 10, 4
UNIFORM = 0.01
"""Attention is called uniform where no weight differs from uniform by more than this part."""
LEAST_REACH = 0.1
"""Colours reach at least this power of 2 to each side, so that noise has no full colour."""
WITHIN = 0.98  # the part of all attention whose cells lie within the colours


@dataclass(frozen=True)
class AttentionShare:
    """A sample's share of attention to a target, over seeds, and that of uniform attention."""

    measured: Summary
    uniform: float


@dataclass(frozen=True)
class AttentionOfArm:
    """Attention of one arm; ratios are to uniform attention, NaN where no pair was seen."""

    ratio: NDArray[Any]  # (P, P), rows attend; mean over heads and seeds
    pairs: NDArray[Any]  # (P, P) how many were seen, all seeds together
    # (H, P, P) of the first seed alone: heads of two trainings have nothing in common
    heads: NDArray[Any]
    shares: dict[str, AttentionShare]  # by `TARGETS`, mean over heads
    # (3, 3) share of attention from samples of shot group i to other samples of group j
    flow: NDArray[Any]
    flow_ratio: NDArray[Any]  # (3, 3) the same per pair, relative to uniform attention
    seeds: int
    # The largest relative difference from uniform attention in any head and seed, of a cell or of
    # what samples give to themselves
    deviation: float

    @property
    def uniform(self) -> bool:
        """Whether every head attends to all samples alike."""
        return self.deviation <= UNIFORM


@dataclass(frozen=True)
class Attention:
    """P bins of classes from the most to the least frequent."""

    counts: NDArray[Any]  # mean training images of a bin's classes, (P,)
    classes_per_bin: int  # the largest number of classes in a bin
    batch: float  # samples of a batch, the mean over batches
    by_arm: dict[str, AttentionOfArm]
    main: str  # the arm whose maps are drawn
    # Names of the classes, if each is a bin and few enough to be named along an axis; else empty
    names: tuple[str, ...] = ()
    images: str = "test samples"  # test images that were seen, in words

    @property
    def groups(self) -> list[int]:
        """Places in ``SHOTS`` of the groups whose samples were seen."""
        flow = self.by_arm[self.main].flow
        return [i for i in range(len(flow)) if np.isfinite(flow[i]).any()]


def make(data: Attention) -> CaptionedFigure:
    first, *flows = tables(data)
    title = "Attention between samples"
    return CaptionedFigure(title, caption(data), lambda: draw(data), [first], flows)


def gather(group: NetworkGroup, arm: str | None = None) -> Attention | None:
    """Collect attention by arm. Maps are of ``arm``: by default batchformer, else the first."""
    found = arrays_by_arm(group, *NAMES)
    if not found or (arm is not None and arm not in found):
        return None
    main = arm or main_arm(found) or ""
    by_arm = {name: _of_arm(list(runs.values())) for name, runs in found.items()}
    first = next(iter(found[main].values()))
    bins = first["bin_of_class"].astype(np.int64)
    size = np.bincount(bins, minlength=len(first["bin_pairs"]))
    sums = np.bincount(bins, first["train_counts"], minlength=len(first["bin_pairs"]))
    counts, classes_per_bin = sums / np.maximum(size, 1), int(size.max())
    # Each bin has one class, so the inverse of the bins is the order of the classes.
    few = classes_per_bin == 1 and len(size) <= MOST_NAMES
    by_class = class_names(group, main, len(bins)) if few else ()
    names = tuple(by_class[k] for k in np.argsort(bins)) if by_class else ()
    seen = image_count(group, int(first["attention_self"][0, 1]))
    return Attention(counts, classes_per_bin, _batch(first), by_arm, main, names, seen.words)


def _batch(run: InsightArrays) -> float:
    """N, the batch size: every sample has N - 1 pairs."""
    samples = float(run["attention_self"][0, 1])
    return 1.0 + float(run["bin_pairs"].sum()) / samples


def _of_arm(runs: list[InsightArrays]) -> AttentionOfArm:
    ratios = [_ratio(run["attention"], run["bin_pairs"], run) for run in runs]
    flows = [_ratio(run["attention_shots"], run["shot_pairs"], run) for run in runs]
    own = [(run["attention_self"].T, run) for run in runs]
    to_themselves = [_ratio(sums, samples, run) for (sums, samples), run in own]
    return AttentionOfArm(
        mean_of_known(np.stack([ratio.mean(0) for ratio in ratios])),
        np.sum([run["bin_pairs"] for run in runs], 0),
        ratios[0],
        {target: _share(runs, name) for target, name in TARGETS.items()},
        mean_of_known(np.stack([_flow(run) for run in runs])),
        mean_of_known(np.stack([flow.mean(0) for flow in flows])),
        len(runs),
        max(float(np.nanmax(np.abs(part - 1), initial=0.0)) for part in (*ratios, *to_themselves)),
    )


def _ratio(sums: NDArray[Any], pairs: NDArray[Any], run: InsightArrays) -> NDArray[Any]:
    """Mean weight of a pair over uniform weight, from sums (H, ...) and counts."""
    return safe_divide(_batch(run) * sums.astype(np.float64), pairs)


def _share(runs: list[InsightArrays], name: str) -> AttentionShare:
    samples = [float(run["attention_self"][0, 1]) for run in runs]
    each = list(zip(runs, samples, strict=True))
    measured = [float(run[name][:, 0].mean()) / count for run, count in each]
    uniform = [float(run[name][0, 1]) / count / _batch(run) for run, count in each]
    return AttentionShare(summary(measured, within=(0.0, 1.0)), float(np.mean(uniform)))


def _flow(run: InsightArrays) -> NDArray[Any]:
    pairs = run["shot_pairs"].astype(np.float64)
    # A sample of the row has N - 1 others, so this is how many samples the row has.
    samples = pairs.sum(1, keepdims=True) / (_batch(run) - 1)
    return safe_divide(run["attention_shots"].astype(np.float64).mean(0), samples)


def draw(data: Attention) -> Figure:
    """The mean over heads, the flow between shot groups, then every head; a colour scale each.

    With one shot group there is no flow between groups to be seen, and room for names of classes.
    """
    found = data.by_arm[data.main]
    reach = reach_of(found.ratio, found.pairs)
    # Maps of uniform attention are blank, so one is enough.
    heads = found.heads if len(found.heads) > 1 and not found.uniform else found.heads[:0]
    rows = -(-len(heads) // HEADS_A_ROW)
    first = 2.5 if len(data.groups) > 1 else 3.0
    drawn, grid = new_grid(1, 1, [first + 1.25 * rows + 0.35 * bool(rows)])
    grid[0][0].remove()
    above, below = drawn, None
    if rows:
        parts: Any = drawn.subfigures(2, 1, height_ratios=[first, 1.25 * rows + 0.35])
        above, below = parts[0], parts[1]
        for part in parts:
            part.patch.set_alpha(0)
    panels = above.subplots(1, 2 if len(data.groups) > 1 else 1, squeeze=False)[0].tolist()
    image = _map(panels[0], found.ratio, reach)
    title(panels[0], "Every head" if found.uniform else "Mean over heads")
    if found.uniform:  # the map is blank
        style: Any = {"ha": "center", "va": "center", "fontsize": SMALL, "color": "#000000"}
        text = f"uniform,\nwithin {at_most(found.deviation)}"
        panels[0].text(0.5, 0.5, text, transform=panels[0].transAxes, **style)
    _axes_of_classes(panels[0], data)
    if len(panels) > 1:
        _flow_cells(panels[1], found, data.groups, reach)
    _bar(above, image, panels, reach, found.ratio)
    if below is not None:
        reach = reach_of(heads, found.pairs)
        small = below.subplots(rows, HEADS_A_ROW, squeeze=False).ravel()
        for axes in small:
            bare(axes)
            axes.set_visible(False)
        for i, (axes, ratio) in enumerate(zip(small, heads, strict=False)):
            axes.set_visible(True)
            image = _map(axes, ratio, reach)
            title(axes, f"Head {i + 1}")
        _bar(below, image, list(small), reach, heads)
    return drawn


def _axes_of_classes(axes: Axes, data: Attention) -> None:
    ticks, labels = count_ticks(data.counts.tolist(), 3)
    named = bool(data.names) and len(data.groups) < 2
    if named:
        ticks, labels = list(range(len(data.names))), list(data.names)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_ticks(ticks, labels)
        for label in axis.get_ticklabels():
            label.set_parse_math(False)
    axes.tick_params(colors=INK, labelsize=SMALL, length=3)
    axes.tick_params(axis="x", labelrotation=90 if named else 0)
    what = "" if named else ": training samples"
    axes.set_ylabel(f"From{what}", fontsize=SMALL, color=INK)
    axes.set_xlabel(f"To{what}", fontsize=SMALL, color=INK)


def _bar(figure: Any, image: Any, panels: list[Axes], reach: float, ratio: NDArray[Any]) -> None:
    """The scale of the colours; an arrow where a cell of ``ratio`` lies beyond its end."""
    below, above = beyond(ratio, reach)
    ends = {(True, True): "both", (True, False): "min", (False, True): "max"}
    place: Any = {"location": "bottom", "shrink": 0.6, "aspect": 30}
    extend = ends.get((below, above), "neither")
    bar = figure.colorbar(image, ax=panels, extend=extend, **place)
    bar.set_ticks([-reach, 0, reach], labels=[times(2**-reach), "uniform", times(2**reach)])
    bar.ax.tick_params(colors=INK, labelsize=SMALL, length=0)
    bar.outline.set(edgecolor=INK, linewidth=0.5)  # so that dark ends are visible on a dark page


def _flow_cells(axes: Axes, found: AttentionOfArm, present: list[int], reach: float) -> None:
    ratio, flow = (part[np.ix_(present, present)] for part in (found.flow_ratio, found.flow))
    texts = [
        [f"{times(r)}\n{100 * f:.0f}%" for r, f in zip(*row, strict=True)]
        for row in zip(ratio, flow, strict=True)
    ]
    names = [SHOTS[i] for i in present]
    limits = (-reach, reach)
    cells(axes, in_colours(ratio, reach), texts, names, colours=DIVERGING, limits=limits)
    axes.set_aspect("equal")
    axes.tick_params(colors=INK, labelsize=SMALL)
    title(axes, "Between shot groups")


def _map(axes: Axes, ratio: NDArray[Any], reach: float) -> Any:
    for spine in axes.spines.values():
        spine.set_visible(False)
    from matplotlib import colormaps

    shown = np.ma.masked_invalid(in_colours(ratio, reach))
    colours = colormaps[DIVERGING].with_extremes(bad=INK)  # transparent would look like uniform
    return axes.imshow(shown, cmap=colours, vmin=-reach, vmax=reach, interpolation="none")


# Ratios as colours: log2, symmetric around 0, extremes clipped


def reach_of(ratio: NDArray[Any], pairs: NDArray[Any]) -> float:
    """How far the colours go to each side, in powers of 2.

    ``ratio`` (..., P, P) is NaN where none of the ``pairs`` (P, P) was seen. Cells are weighted by
    their attention, and those that hold ``WITHIN`` of it lie within the colours. Otherwise a class
    that hardly any sample attends to would wash out all others.
    """
    given = np.where(np.isfinite(ratio), ratio * pairs, 0.0)
    used = given > 0
    if not used.any():
        return 1.0
    far, weight = np.abs(np.log2(ratio[used])), given[used]
    order = np.argsort(far)
    total = np.cumsum(weight[order])
    last = int(np.searchsorted(total, WITHIN * total[-1]))
    return max(float(far[order][last]), LEAST_REACH)


def in_colours(ratio: NDArray[Any], reach: float) -> NDArray[Any]:
    """log2 of ratios, clipped to ±``reach``; a ratio of 0 becomes -``reach``, NaN stays NaN."""
    with np.errstate(divide="ignore"):
        powers: NDArray[Any] = np.clip(np.log2(ratio), -reach, reach)
    return powers


def beyond(ratio: NDArray[Any], reach: float) -> tuple[bool, bool]:
    """Whether a cell lies below the colours, and whether one lies above them.

    >>> beyond(np.array([0.0, 0.5, 2.0]), reach=1.0)
    (True, False)
    """
    powers = in_colours(ratio, np.inf)
    # The cell that set the reach is not beyond it, despite rounding.
    limit = reach * (1 + 1e-9)
    return bool((powers < -limit).any()), bool((powers > limit).any())


# Words and tables


def caption(data: Attention) -> Caption:
    found = data.by_arm[data.main]
    maps = "every class a row and a column"
    if data.classes_per_bin > 1:
        maps = f"rows and columns of up to {data.classes_per_bin} classes"
    several = found.seeds > 1
    seeds = f" (mean over {found.seeds} seeds; heads are of the first)" if several else ""
    own = found.shares["others of its class"]
    note = (
        f"Who attends to whom{f' with {data.main}' if len(data.by_arm) > 1 else ''}, {maps} from "
        f"the most to the fewest training samples. Colours are ratios to uniform attention. "
    )
    note += (
        "Here attention is uniform, so the map is blank."
        if found.uniform
        else f"A sample gives {100 * own.measured.mean:.1f}% to others of its class; uniform "
        f"attention would give {100 * own.uniform:.1f}%."
    )
    details = f"On {data.images} in batches of {data.batch:.0f}{seeds}."
    if found.uniform:
        details += (
            f" No cell of any head and seed differs from uniform attention by more than "
            f"{at_most(found.deviation)}, so heads are not drawn one by one. What BatchFormer "
            f"mixes in is then the same for every sample of a batch."
        )
    drawn = [found.ratio, *([found.heads] if len(found.heads) > 1 else [])]
    if any(any(beyond(ratio, reach_of(ratio, found.pairs))) for ratio in drawn):
        details += (
            f" Colours reach as far as the cells that hold {100 * WITHIN:.0f}% of this attention "
            f"need; more extreme cells have the colour of the end."
        )
    if np.isnan(found.ratio).any():
        details += " Of grey cells no pair was seen."
    if len(data.groups) > 1:
        details += (
            " Between shot groups the percentage is the part of a sample's attention that goes to "
            "others of that group."
        )
    said = "; ".join(
        f"to {target} {100 * share.measured.mean:.1f}% (uniform {100 * share.uniform:.1f}%)"
        for target, share in found.shares.items()
    )
    return Caption.of("Heat maps.", note, f"{details} A sample gives {said}.")


def tables(data: Attention) -> list[FigureTable]:
    """Shares to itself, its class and others; and the flow between shot groups of each arm."""
    rows = []
    for arm, found in data.by_arm.items():
        for target, share in found.shares.items():
            measured, uniform = share.measured, share.uniform
            low, high = (None if v is None else 100 * v for v in (measured.low, measured.high))
            text = f"{number(100 * measured.mean)} {interval(low, high)}".strip()
            ratio = times(measured.mean / uniform) if uniform else ""
            rows.append((arm, target, text, number(100 * uniform), ratio))
    columns = ("arm", "attends to", "share", "uniform", "ratio")
    made = [FigureTable("Where attention goes, %", columns, rows)]
    if len(data.groups) < 2:
        return made
    for arm, found in data.by_arm.items():
        lines = [
            (
                name,
                *(
                    "" if np.isnan(r) else f"{times(r)} ({100 * f:.1f}%)"
                    for r, f in zip(ratio, flow, strict=True)
                ),
            )
            for name, ratio, flow in zip(SHOTS, found.flow_ratio, found.flow, strict=True)
            if np.isfinite(flow).any()
        ]
        groups = ("from", *(f"to {name}" for name in SHOTS))
        made.append(FigureTable(f"{arm}: flow between shot groups", groups, lines))
    return made


def times(ratio: float) -> str:
    """Write a ratio."""
    return f"{ratio:.2f}×" if ratio < 9.995 else f"{ratio:.0f}×"


def at_most(part: float) -> str:
    """Write a part as percent, rounded up to one digit.

    >>> at_most(6.97e-5), at_most(0.0081), at_most(0.0)
    ('0.007%', '0.9%', '0.001%')
    """
    percent = max(100 * part, 0.001)
    digit = 10.0 ** np.floor(np.log10(percent))
    return f"{np.ceil(percent / digit - 1e-9) * digit:.5f}".rstrip("0").rstrip(".") + "%"
