"""Colours that everyone can tell apart, on both pages, and cells with legible numbers."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_rgb

from batchformer.lab.report.figures.canvas import (
    CLASS_COLOURS,
    CLASS_MARKERS,
    SHOT_COLOURS,
    SHOT_MARKERS,
    WIDTH,
    cells,
    count_ticks,
    ink_on,
    new_grid,
)

PAGES = ("#ffffff", "#1a1d21")


def luminance(colour: str) -> float:
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))


def contrast(left: str, right: str) -> float:
    low, high = sorted([luminance(left), luminance(right)])
    return (high + 0.05) / (low + 0.05)


def deuteranope(colour: str) -> np.ndarray:
    """What is left of a colour without the middle cones, by Viénot, Brettel and Mollon (1999)."""
    red, green, blue = (
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)
    )
    same = 0.2929 * red + 0.7071 * green
    return np.array([same, same, blue - 0.02234 * red + 0.02234 * green])


@pytest.mark.parametrize("colour", [*SHOT_COLOURS.values(), *CLASS_COLOURS])
@pytest.mark.parametrize("page", PAGES)
def test_marks_stand_out_on_both_pages(colour: str, page: str) -> None:
    assert contrast(colour, page) >= 3


def test_shot_groups_differ_in_shape_and_without_green_cones_in_colour() -> None:
    assert len(set(SHOT_MARKERS.values())) == 3
    for left, right in combinations(SHOT_COLOURS.values(), 2):
        assert np.abs(deuteranope(left) - deuteranope(right)).max() > 0.04


def test_classes_differ_in_shape_and_without_green_cones_in_colour() -> None:
    assert len(set(CLASS_MARKERS)) == len(CLASS_COLOURS) == 10
    for left, right in combinations(CLASS_COLOURS, 2):
        assert np.abs(deuteranope(left) - deuteranope(right)).max() > 0.04


@given(st.tuples(*[st.floats(0, 1)] * 3))
def test_text_on_a_cell_always_has_the_better_contrast(colour: tuple[float, float, float]) -> None:
    from matplotlib.colors import to_hex

    chosen = ink_on(to_rgb(to_hex(colour)))
    other = {"#000000": "#ffffff", "#ffffff": "#000000"}[chosen]
    assert contrast(chosen, to_hex(colour)) >= contrast(other, to_hex(colour)) - 1e-9
    assert contrast(chosen, to_hex(colour)) >= 4.5


def test_a_grid_is_as_wide_as_every_figure_and_transparent() -> None:
    figure, grid = new_grid(2, 3, [1.0, 2.0])
    assert [len(row) for row in grid] == [3, 3]
    assert figure.get_figwidth() == WIDTH and figure.patch.get_alpha() == 0
    assert all(axes.patch.get_alpha() == 0 for row in grid for axes in row)


def test_cells_are_read_from_the_top_and_unknown_ones_are_empty() -> None:
    _, ((axes,),) = new_grid(1, 1, [2.0])
    values = np.array([[1.0, np.nan], [0.25, 0.5]])
    texts = [["a", "b"], ["c", "d"]]
    cells(axes, values, texts, ["x", "y"], colours="Blues", limits=(0, 1))
    found = {text.get_text(): text.get_position() for text in axes.texts}
    assert found == {"a": (0, 0), "c": (0, 1), "d": (1, 1)}
    assert axes.yaxis_inverted()
    assert [label.get_text() for label in axes.get_yticklabels()] == ["x", "y"]


@given(st.integers(1, 1000), st.integers(2, 6))
def test_ticks_hold_both_ends_and_are_few(classes: int, most: int) -> None:
    counts = [float(classes - i) for i in range(classes)]
    places, labels = count_ticks(counts, most)
    assert places[0] == 0 and places[-1] == classes - 1 and len(places) <= most
    assert labels == [f"{counts[place]:,.0f}" for place in places]
