"""Figures that read on a light and on a dark page, from a phone's width up.

A figure is 4.5 inches wide: 324 units, one phone. Ink is one grey that the page replaces by
its own text colour. Nothing here touches pyplot.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from batchformer.lab.report.results.extra import extra

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#80848a"
"""Text and axes: legible by itself on white and on black, ``currentColor`` on a page."""

WIDTH = 4.5
TEXT = 9
DASHES: tuple[Any, ...] = ((0, (4, 1.5)), "-", (0, (1, 1)), (0, (6, 1.5, 1, 1.5)), (0, (2.5, 1)))
MARKERS = ("o", "D", "^", "s", "v")


def new_figure(heights: Sequence[float]) -> tuple[Figure, list[Axes]]:
    """A transparent figure of panels one above the other, with their heights in inches."""
    with extra("report"):
        from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, sum(heights) + 0.5), layout="constrained")
    figure.patch.set_alpha(0)
    grid = figure.subplots(len(heights), 1, squeeze=False, height_ratios=list(heights), sharex=True)
    panels: list[Axes] = list(grid[:, 0])
    for axes in panels:
        axes.patch.set_alpha(0)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        for side in ("left", "bottom"):
            axes.spines[side].set_color(INK)
            axes.spines[side].set_alpha(0.5)
        axes.tick_params(colors=INK, labelsize=TEXT, length=3)
        axes.grid(axis="y", color=INK, alpha=0.2, linewidth=0.6)
        axes.set_axisbelow(True)
    return figure, panels


def title(axes: Axes, text: str) -> None:
    """What a panel shows, above it at the left, where an axis label would cost width."""
    axes.set_title(text, loc="left", fontsize=TEXT, color=INK, parse_math=False)


def legend(figure: Figure, axes: Axes) -> None:
    """The arms, above the panels."""
    handles, labels = axes.get_legend_handles_labels()
    columns = 1 if max(map(len, labels), default=0) > 24 else min(len(labels), 2)
    shown = figure.legend(
        handles,
        labels,
        loc="outside upper left",
        ncols=columns,
        frameon=False,
        fontsize=TEXT,
        labelcolor=INK,
        handlelength=2.4,
        borderaxespad=0,
    )
    for text in shown.get_texts():
        text.set_parse_math(False)


def inline_svg(figure: Figure, description: str, prefix: str) -> str:
    """The figure as an ``<svg>`` element to put into a page.

    Args:
        figure: from ``new_figure``.
        description: what a reader who cannot see it is told.
        prefix: of its ids, which must be unique on the page.
    """
    with extra("report"):
        import matplotlib

    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    root = ElementTree.fromstring(re.sub(r"<!DOCTYPE[^>]*>", "", buffer.getvalue()))
    # Numbered anew: matplotlib's ids hold memory addresses, and equal runs give equal pages.
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
