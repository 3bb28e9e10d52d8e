"""Tables of a figure, read back from the page as a browser would."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from batchformer.insight.figures.captioned import FigureTable, table_html
from helpers.markup import Markup

HOSTILE = '<script>\'x\'</script>" onload="y" & &amp;'
KNOWN = {"div", "table", "thead", "tbody", "tr", "th", "td", "small", "wbr"}
cells = st.text(max_size=12) | st.sampled_from(
    ["", "0.67 [0.64, 0.70]", "<script>alert(1)</script>", "a & b", '"', "x_y_z", "&lt;", " ["]
)


@st.composite
def tables(draw: st.DrawFn) -> FigureTable:
    width = draw(st.integers(1, 4))
    columns = draw(st.tuples(*[cells.filter(lambda name: name != "n")] * width))
    rows = draw(st.lists(st.tuples(*[cells] * width), min_size=1, max_size=4))
    return FigureTable(draw(cells), columns, rows)


@settings(deadline=None, max_examples=50)
@given(tables())
@example(FigureTable(HOSTILE, (HOSTILE, "b"), [(HOSTILE, f"{HOSTILE} [{HOSTILE}, 1]")]))
def test_whatever_the_text_it_is_read_as_it_was_written(numbers: FigureTable) -> None:
    html = table_html(numbers)
    kept = [i for i in range(len(numbers.columns)) if any(row[i] for row in numbers.rows)]
    if not kept:
        assert html == "", "nothing in it, nothing shown"
        return
    page = Markup(html)
    written = [numbers.columns, *numbers.rows]
    assert page.rows == [[row[i] for i in kept] for row in written]
    assert {tag for tag, _ in page.elements} <= KNOWN
    first, attributes = page.elements[0]
    assert first == "div" and attributes["aria-label"] == numbers.caption


def test_the_region_scrolls_by_keyboard_and_cells_say_what_they_head() -> None:
    numbers = FigureTable("Spread", ("arm", "many", "few"), [("a", "1", "2"), ("b", "3", "4")])
    page = Markup(table_html(numbers))
    region = dict(page.elements)["div"]
    assert region["role"] == "region" and region["tabindex"] == "0"
    assert "scroll" in str(region["class"]).split()
    heads = [attributes["scope"] for tag, attributes in page.elements if tag == "th"]
    assert heads == ["col", "col", "col", "row", "row"]


def test_seeds_stand_below_the_arm_and_have_no_column() -> None:
    rows = [("batch_former", "1", "0.5 [0.4, 0.6]"), ("baseline", "12", "0.25")]
    page = Markup(table_html(FigureTable("Spread", ("arm", "n", "few"), rows)))
    assert page.rows == [
        ["arm", "few"],
        ["batch_former 1 seed", "0.5 [0.4, 0.6]"],
        ["baseline 12 seeds", "0.25"],
    ]
    assert page.small == ["1 seed", "[0.4, 0.6]", "12 seeds"]


def test_a_number_of_something_else_keeps_its_column() -> None:
    page = Markup(table_html(FigureTable("Bins", ("arm", "many", "n"), [("a", "0.5", "7")])))
    assert page.rows == [["arm", "many", "n"], ["a", "0.5", "7"]]


def test_a_long_name_may_break_after_each_underscore() -> None:
    numbers = FigureTable("Spread", ("arm_a", "few"), [("batchformer_mixed_only", "x_y")])
    html = table_html(numbers)
    assert html.count("<wbr>") == 2 and "batchformer_<wbr>mixed_<wbr>only" in html


@pytest.mark.parametrize("rows", [[], [("", "", "")]])
def test_a_table_without_anything_in_it_is_not_shown(rows: list[tuple[str, ...]]) -> None:
    assert table_html(FigureTable("Spread", ("arm", "n", "few"), rows)) == ""
