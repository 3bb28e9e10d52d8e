"""Figures for a page, colours that everyone can tell apart, and cells with legible numbers."""

from __future__ import annotations

import re
import subprocess
import sys
import warnings
from collections.abc import Collection, Iterable
from itertools import combinations
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure

from batchformer.insight.figures.canvas import (
    CLASS_COLOURS,
    CLASS_MARKERS,
    INK,
    SHOT_MARKS,
    WIDTH,
    Mark,
    cells,
    ink_on,
    inline_svg,
    legend,
    mark_legend,
    new_figure,
    new_grid,
    title,
)
from helpers.colours import contrast, linear


@pytest.mark.parametrize("name", ["", "airplane ", "a class of a long name "])
def test_a_legend_of_ten_marks_is_no_wider_than_the_figure(name: str) -> None:
    figure, _ = new_grid(1, 1, [2.0])
    mark_legend(figure, [Mark(f"{name}{i}", "#1f7ac4", "o") for i in range(10)])
    figure.draw_without_rendering()
    (made,) = figure.legends
    assert made.get_window_extent().width <= figure.bbox.width


def test_panels_keep_their_heights_under_a_legend_of_many_arms() -> None:
    heights = []
    for arms in (2, 21):
        figure, (axes,) = new_figure([2.0])
        figure.set_dpi(72)  # as an SVG is laid out
        for i in range(arms):
            axes.plot([0, 1], [0, i], label=f"a long name of an arm, {i}")
        legend(figure, axes)
        figure.draw_without_rendering()
        assert figure.legends[0].get_window_extent().y0 >= axes.get_window_extent().y1
        heights.append(axes.get_window_extent().height / figure.dpi)
    assert heights[1] == pytest.approx(heights[0], rel=0.1)


def drawn() -> Figure:
    figure, panels = new_figure([1.0, 2.0])
    panels[0].plot([1, 2, 3], [1, 5, 2], marker="o", color="#1f7ac4", label="a $b$ <c>")
    panels[1].fill_between([1, 2, 3], [0, 1, 0], [2, 3, 2], color="#d55e00", alpha=0.2)
    title(panels[1], "Cost in $ and in % & more")
    legend(figure, panels[0])
    return figure


@pytest.fixture(scope="module")
def svg() -> str:
    return inline_svg(drawn(), 'Says "what" & why', "one")


def test_it_is_one_well_formed_element_with_a_description(svg: str) -> None:
    root = ElementTree.fromstring(svg)
    assert root.tag == "svg"
    assert (root.get("role"), root.get("aria-label")) == ("img", 'Says "what" & why')
    assert root.get("width") is root.get("height") is None, "the page sets the size"
    assert root.get("viewBox", "").startswith(f"0 0 {72 * WIDTH:g} ")


def test_ink_and_fonts_are_those_of_the_page_and_nothing_reaches_outside(svg: str) -> None:
    for outside in ("http", "<style", "<metadata"):
        assert outside not in svg
    assert INK not in svg
    assert "currentColor" in svg
    assert not re.search(r"fill: (#ffffff|white)", svg)
    assert not re.search(r"(fill|stroke): (#000000|black)", svg), "black is lost on a dark page"
    texts = ElementTree.fromstring(svg).iter("text")
    assert all("currentColor" in element.get("style", "") for element in texts)
    words = [element.text for element in ElementTree.fromstring(svg).iter("text")]
    assert "Cost in $ and in % & more" in words
    assert "a $b$ <c>" in words
    assert "DejaVu" not in svg
    assert "font-size: 9px" in svg


def test_letters_that_only_the_page_has_are_kept_without_a_warning() -> None:
    figure, (axes,) = new_figure([2.0])
    title(axes, "蓝")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "蓝" in inline_svg(figure, "x", "x")


def test_equal_figures_are_equal_text_but_for_their_ids(svg: str) -> None:
    assert inline_svg(drawn(), 'Says "what" & why', "one") == svg
    ids = []
    for text in (svg, inline_svg(drawn(), "x", "two")):
        own = set(re.findall(r'\bid="([^"]+)"', text))
        used = set(re.findall(r'url\(#([^)"]+)\)|href="#([^"]+)"', text))
        assert {a or b for a, b in used} == own, "references are met"
        assert own
        ids.append(own)
    assert not ids[0] & ids[1]


def test_pyplot_and_its_global_state_are_left_alone() -> None:
    # Asking for "backend" would import pyplot.
    code = (
        "import sys; from batchformer.insight.figures.canvas import *; import matplotlib;"
        "kept = lambda: {k: matplotlib.rcParams[k] for k in matplotlib.rcParams if k != 'backend'};"
        "before = kept(); figure, panels = new_figure([1.0]); inline_svg(figure, 'x', 'y');"
        "assert kept() == before; assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)


PAGES = ("#ffffff", "#1a1d21")


def deuteranope(colour: str) -> np.ndarray:
    """What is left of a colour without the middle cones, by Viénot, Brettel and Mollon (1999)."""
    red, green, blue = linear(colour)
    same = 0.2929 * red + 0.7071 * green
    return np.array([same, same, blue - 0.02234 * red + 0.02234 * green])


@pytest.mark.parametrize("colour", [*(mark.colour for mark in SHOT_MARKS), *CLASS_COLOURS])
@pytest.mark.parametrize("page", PAGES)
def test_marks_stand_out_on_both_pages(colour: str, page: str) -> None:
    assert contrast(colour, page) >= 3


@pytest.mark.parametrize(
    ("markers", "colours", "kinds"),
    [
        ([mark.shape for mark in SHOT_MARKS], [mark.colour for mark in SHOT_MARKS], 3),
        (CLASS_MARKERS, CLASS_COLOURS, 10),
    ],
)
def test_groups_differ_in_shape_and_without_green_cones_in_colour(
    markers: Iterable[str], colours: Collection[str], kinds: int
) -> None:
    assert len(set(markers)) == len(colours) == kinds
    for left, right in combinations(colours, 2):
        assert np.abs(deuteranope(left) - deuteranope(right)).max() > 0.04


@given(st.tuples(*[st.floats(0, 1)] * 3))
def test_text_on_a_cell_always_has_the_better_contrast(colour: tuple[float, float, float]) -> None:
    chosen = ink_on(to_rgb(to_hex(colour)))
    other = {"#000000": "#ffffff", "#ffffff": "#000000"}[chosen]
    assert contrast(chosen, to_hex(colour)) >= contrast(other, to_hex(colour)) - 1e-9
    assert contrast(chosen, to_hex(colour)) >= 4.5


def test_cells_are_read_from_the_top_and_unknown_ones_are_empty() -> None:
    _, ((axes,),) = new_grid(1, 1, [2.0])
    values = np.array([[1.0, np.nan], [0.25, 0.5]])
    texts = [["a", "b"], ["c", "d"]]
    cells(axes, values, texts, ["x", "y"], colours="Blues", limits=(0, 1))
    found = {text.get_text(): text.get_position() for text in axes.texts}
    assert found == {"a": (0, 0), "c": (0, 1), "d": (1, 1)}
    assert axes.yaxis_inverted()
    assert [label.get_text() for label in axes.get_yticklabels()] == ["x", "y"]
