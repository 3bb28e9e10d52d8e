"""Figures that are legible on a light and on a dark page, from a phone's width up.

A figure is 4.5 inches wide: 324 units, a phone's width. Ink is one grey that the page replaces by
its own text colour. Text on a coloured cell is black or white, whichever is legible there.
Nothing here touches pyplot.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from batchformer.insight.optional import extra
from batchformer.insight.record import SHOTS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#80848a"
"""Text and axes: legible by itself on white and on black, ``currentColor`` on a page."""

WIDTH = 4.5
TEXT = 9
DASHES: tuple[Any, ...] = ((0, (4, 1.5)), "-", (0, (1, 1)), (0, (6, 1.5, 1, 1.5)), (0, (2.5, 1)))
MARKERS = ("o", "D", "^", "s", "v")

SMALL = TEXT - 1  # the smallest text that is legible on a phone
DOTS = 220  # dots per inch of the rasterised parts of a figure

CLASS_COLOURS = (
    *("#0096f0", "#a55a4b", "#e10078", "#0f8700", "#960fff"),
    *("#96964b", "#0f9696", "#964bb4", "#ff001e", "#ff2de1"),
)
"""Colours of ten classes: their contrast is at least 3:1 on both pages, and they are distinct for
three kinds of colour vision."""
CLASS_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*")

DIVERGING, SEQUENTIAL = "RdBu_r", "Blues"  # colour maps that do not rely on red against green


LONGEST_NAME = 16
TITLE_LETTERS, HALF_LETTERS = 62, 26  # letters above a panel, and above one of two side by side
LEGEND_LETTERS, MARK_LETTERS = 52, 5
"""Letters of a legend's line, and those that a mark and the space around it take."""
LEGEND_LINE = 0.2  # inches


@dataclass(frozen=True)
class Mark:
    """How something looks in a scatter plot."""

    name: str
    colour: str
    shape: str


SHOT_MARKS = [
    Mark(*look) for look in zip(SHOTS, ("#3d82c4", "#b07d00", "#cc4f6d"), "os^", strict=True)
]
"""Blue, yellow and red differ for every kind of colour vision; their contrast is at least 3:1 on
both pages."""


def new_figure(heights: Sequence[float]) -> tuple[Figure, list[Axes]]:
    """A transparent figure of panels one above the other, with their heights in inches."""
    figure, grid = _panels((len(heights), 1), heights, 0.5, TEXT, sharex=True)
    panels = [row[0] for row in grid]
    for axes in panels:
        level_lines(axes)
    return figure, panels


def level_lines(axes: Axes) -> None:
    """Thin lines at the ticks of the y axis, behind what is drawn."""
    axes.grid(axis="y", color=INK, alpha=0.2, linewidth=0.6)
    axes.set_axisbelow(True)


def new_grid(
    rows: int, columns: int, heights: Sequence[float], **options: Any
) -> tuple[Figure, list[list[Axes]]]:
    """A transparent figure of ``rows`` x ``columns`` panels, with the rows' heights in inches."""
    return _panels((rows, columns), heights, 0.4, SMALL, **options)


def _panels(
    shape: tuple[int, int],
    heights: Sequence[float],
    margin: float,
    text: int,
    **options: Any,
) -> tuple[Figure, list[list[Axes]]]:
    with extra("report"):
        from matplotlib.figure import Figure

    size = WIDTH, sum(heights) + margin
    figure = Figure(figsize=size, layout="constrained", dpi=DOTS)
    figure.patch.set_alpha(0)
    grid: list[list[Axes]] = figure.subplots(
        *shape, squeeze=False, height_ratios=list(heights), **options
    ).tolist()
    for axes in (axes for row in grid for axes in row):
        axes.patch.set_alpha(0)
        for side, spine in axes.spines.items():
            spine.set_visible(side in ("left", "bottom"))
            spine.set_color(INK)
            spine.set_alpha(0.5)
        axes.tick_params(colors=INK, labelsize=text, length=3)
    return figure, grid


def title(axes: Axes, text: str) -> None:
    """Write what a panel shows above it, since an axis label would cost width."""
    axes.set_title(text, loc="left", fontsize=TEXT, color=INK, parse_math=False)


def with_unit(text: str, unit: str, letters: int) -> str:
    """A title with its unit if both fit into so many letters, else the title, shortened.

    >>> with_unit("Accuracy", "%", 11), with_unit("Accuracy", "percent", 11), with_unit("ab", "", 1)
    ('Accuracy, %', 'Accuracy', '…')
    """
    whole = f"{text}, {unit}"
    return whole if len(whole) <= letters else shortened(text, letters)


def log_scale(axes: Axes, text: Callable[[float], str]) -> None:
    """Make the y axis logarithmic. Ticks are text: mathtext exponents are too small on a phone."""
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: text(value))
    axes.yaxis.set_minor_formatter(lambda value, _: "")
    axes.tick_params(which="minor", length=0)


def write(axes: Axes, x: float, y: float, text: str, **style: Any) -> None:
    """Write a small text in ink, with no part of it taken for mathematics."""
    usual = {"fontsize": SMALL, "color": INK, "parse_math": False}
    axes.text(x, y, text, **{**usual, **style})


def legend(figure: Figure, axes: Axes) -> None:
    """Draw the legend of the arms above the panels."""
    handles, labels = axes.get_legend_handles_labels()
    columns = 1 if max(map(len, labels), default=0) > 24 else min(len(labels), 2)
    _legend(figure, handles, labels, columns, handlelength=2.4)


def mark_legend(figure: Figure, marks: Sequence[Mark]) -> None:
    """Draw the legend of the marks above the panels."""
    with extra("report"):
        from matplotlib.lines import Line2D

    handles = [Line2D([], [], linestyle="", marker=mark.shape, color=mark.colour) for mark in marks]
    names = [shortened(mark.name, LONGEST_NAME) for mark in marks]
    columns = min(len(names), LEGEND_LETTERS // (max(map(len, names)) + MARK_LETTERS))
    _legend(figure, handles, names, columns, handletextpad=0.2, columnspacing=1.2)


def _legend(
    figure: Figure, handles: Sequence[Any], names: Sequence[str], columns: int, **spaces: float
) -> None:
    # The figure grows by all lines but one, so that panels keep their heights with many arms.
    lines = -(-len(names) // max(columns, 1))
    figure.set_figheight(figure.get_figheight() + max(lines - 1, 0) * LEGEND_LINE)
    style: Any = {"frameon": False, "fontsize": TEXT, "labelcolor": INK, "borderaxespad": 0}
    made = figure.legend(handles, names, loc="outside upper left", ncols=columns, **style, **spaces)
    for text in made.get_texts():
        text.set_parse_math(False)


def inline_svg(figure: Figure, description: str, prefix: str) -> str:
    """The figure as an ``<svg>`` element to put into a page.

    ``description`` is for readers who cannot see it; ``prefix`` makes its ids unique on the page.
    """
    with extra("report"):
        import matplotlib

    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none"}), warnings.catch_warnings():
        # The page's fonts show the text, so letters that matplotlib's fonts lack do not matter.
        warnings.filterwarnings("ignore", "Glyph .* missing")
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    root = ElementTree.fromstring(re.sub(r"<!DOCTYPE[^>]*>", "", buffer.getvalue()))
    # matplotlib's ids contain memory addresses. Renumber them, so that equal runs give equal pages.
    used = dict.fromkeys(re.findall(r"[\"(]#([\w.-]+)", buffer.getvalue()))
    ids = {old: f"{prefix}-{i}" for i, old in enumerate(used)}
    for parent in list(root.iter()):
        for child in list(parent):
            # Its style sheet would apply to the whole page.
            if child.tag.endswith(("}metadata", "}style")):
                parent.remove(child)
    for element in root.iter():
        _adapt(element, ids)
    for size in ("width", "height"):
        root.attrib.pop(size)
    root.attrib |= {"role": "img", "aria-label": description, "stroke-linejoin": "round"}
    return ElementTree.tostring(root, encoding="unicode")


def _adapt(element: ElementTree.Element, ids: Mapping[str, str]) -> None:
    """Make one element the page's own: its namespace, ids, ink and font."""
    element.tag = element.tag.rpartition("}")[2]
    element.text, element.tail = (element.text or "").strip() or None, None
    attributes = {}
    for key, value in element.attrib.items():
        key = key.rpartition("}")[2]
        if key == "id" and value not in ids:
            continue
        if key == "id":
            value = ids[value]
        elif key == "d":
            value = re.sub(r"(\d+\.\d{2})\d+", r"\1", " ".join(value.split()))
        elif key == "style":
            value = re.sub(r"font-family:[^;]*;?\s*", "", value.replace(INK, "currentColor"))
            # Before matplotlib 3.10 size and family are one property.
            value = re.sub(r"font:\s*([\d.]+px)[^;]*", r"font-size: \1", value)
        elif key in ("href", "clip-path"):
            value = re.sub(r"#([\w.-]+)", lambda found: f"#{ids[found[1]]}", value)
        attributes[key] = value
    element.attrib.clear()
    element.attrib.update(attributes)


def bare(axes: Axes) -> None:
    """Remove ticks and frame, for images."""
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(False)


def cells(
    axes: Axes,
    values: NDArray[Any],
    texts: Sequence[Sequence[str]],
    names: Sequence[str],
    *,
    colours: str,
    limits: tuple[float, float],
) -> None:
    """A square matrix (G, G) as coloured cells with a text in each, its rows and columns named.

    A value that is NaN leaves its cell empty.
    """
    edges = np.arange(len(values) + 1) - 0.5
    image: Any = axes.pcolormesh(
        edges, edges, np.ma.masked_invalid(values), cmap=colours, vmin=limits[0], vmax=limits[1]
    )
    axes.invert_yaxis()
    for (i, j), value in np.ndenumerate(values):
        if np.isfinite(value):
            ink = ink_on(image.cmap(image.norm(value)))
            write(axes, j, i, texts[i][j], ha="center", va="center", color=ink, linespacing=1.1)
    bare(axes)
    axes.set_xticks(range(len(names)), names)
    axes.set_yticks(range(len(names)), names)
    axes.tick_params(length=0)


def ink_on(colour: Sequence[float]) -> str:
    """Black or white, whichever has the larger contrast with a colour (red, green, blue, ...).

    >>> ink_on((1.0, 1.0, 0.8)), ink_on((0.1, 0.1, 0.5))
    ('#000000', '#ffffff')
    """
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour[:3]]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#000000" if (luminance + 0.05) ** 2 > 1.05 * 0.05 else "#ffffff"


def count_ticks(counts: Sequence[float], most: int = 5) -> tuple[list[int], list[str]]:
    """Choose a few places among sorted classes, labelled with their training images.

    >>> count_ticks([500, 100, 50, 10, 5], most=3)
    ([0, 2, 4], ['500', '50', '5'])
    """
    places = np.unique(np.linspace(0, len(counts) - 1, most).round().astype(int)).tolist()
    return places, [f"{counts[place]:,.0f}" for place in places]


def shortened(name: str, most: int) -> str:
    """Shorten a name to at most ``most`` letters.

    >>> shortened("willow tree", 9)
    'willow t…'
    """
    return name if len(name) <= most else f"{name[: most - 1]}…"
