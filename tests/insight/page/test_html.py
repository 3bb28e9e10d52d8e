"""Figures in two columns that end together."""

from __future__ import annotations

import pytest

from batchformer.insight.page.html import Section, in_blocks


def figure(title: str, height: float, *, wide: bool = False) -> Section:
    return Section(title, f'<svg viewBox="0 0 100 {height}">', "", wide=wide)


def titles(*sections: Section) -> list[str]:
    """The blocks of a page, a word each."""
    return ["".join(section.title for section in block) for block in in_blocks(sections)]


@pytest.mark.parametrize(
    ("heights", "blocks"),
    [
        ([90], ["a"]),
        ([90, 90], ["ab"]),
        ([90, 90, 90], ["ab", "c"]),
        ([90, 90, 210], ["abc"]),
        ([90, 90, 90, 90], ["abcd"]),
        ([90, 90, 90, 90, 90], ["abcd", "e"]),
        ([90, 450, 90, 90, 90], ["acdeb"]),
    ],
)
def test_no_half_of_the_page_is_left_empty(heights: list[float], blocks: list[str]) -> None:
    sections = [figure(name, height) for name, height in zip("abcdefg", heights, strict=False)]
    assert titles(*sections) == blocks


def test_what_is_wide_stands_alone_first_or_last() -> None:
    a, b, wide = figure("a", 90), figure("b", 90), figure("W", 90, wide=True)
    assert titles(a, wide, b) == ["ab", "W"]
    assert titles(wide, a, b) == ["W", "ab"]
    assert titles() == []
