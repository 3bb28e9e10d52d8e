"""The page in a real browser, at the width of a desk and of a phone, light and dark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from batchformer.insight.page.html import Section, rendered
from batchformer.lab.report.page.html import write_page
from batchformer.lab.report.results.runs import find_runs
from helpers.run_folders import recipe_of, write_insight, write_run, write_sweep

SIZES = """() => [...document.querySelectorAll('img, svg')].map(element => {
    const box = element.getBoundingClientRect();
    return [element.tagName, box.width, box.height, element.complete ?? true];
})"""
CUT = """() => [...document.querySelectorAll('main *')].filter(element => {
    const box = element.getBoundingClientRect();
    return !element.closest('.scroll, svg') && box.right > innerWidth + 0.5;
}).map(element => element.outerHTML.slice(0, 120))"""


COLOUR = """([selector, value]) =>
    getComputedStyle(document.querySelector(selector))[value].match(/[0-9.]+/g)"""
SMALLEST_TEXT = """() => {
    const svg = document.querySelector('figure svg');
    const scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
    return scale * Math.min(...[...document.querySelectorAll('figure svg text')]
        .map(text => parseFloat(getComputedStyle(text).fontSize)));
}"""
LONG_CAPTIONS = """() => [...document.querySelectorAll('figcaption')].filter(element =>
    element.getBoundingClientRect().height > 4.1 * parseFloat(getComputedStyle(element).lineHeight)
).map(element => element.textContent)"""
EMPTY_ENDS = """() => [...document.querySelectorAll('.figures:not(.one)')].map(block => {
    const ends = {};
    for (const figure of block.children) {
        const box = figure.getBoundingClientRect();
        ends[box.left] = Math.max(ends[box.left] ?? 0, box.bottom);
    }
    return Math.max(...Object.values(ends)) - Math.min(...Object.values(ends));
})"""
GAPS = """() => [...document.querySelectorAll('.figures + *')].map(next => {
    const edge = (element, side) => element.getBoundingClientRect()[side];
    const above = [...next.previousElementSibling.children].map(each => edge(each, 'bottom'));
    const below = next.matches('.figures') ? next.firstElementChild : next;
    return edge(below, 'top') - Math.max(...above);
})"""
Opener = Callable[..., Any]


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A crowded page: long names, many arms, many classes, relations, a sweep, a damaged run.

    The reference is the arm with the longest name, which stands in every heading.
    """
    root = tmp_path_factory.mktemp("browser") / "runs"
    long = recipe_of("a_very_long_recipe_name_without_any_space_" + "x" * 40)
    for arm in ("baseline", "batchformer", "batchformer_self", "batchformer_official_loss"):
        for seed in range(3):
            folder = write_run(root, arm, seed, recipe=long, classes=101, per_class_images=5)
            if seed == 0 and arm in ("baseline", "batchformer"):
                write_insight(folder, heads=6, batches=2)
    cells = [("baseline", "1"), *(("batchformer", level) for level in ("1", "2", "4", "8", "16"))]
    scores = {seed: {"all": 50.0 + seed, "few": 20.0 + seed % 2} for seed in range(3)}
    write_sweep(root, dict.fromkeys(cells, scores), name="a_sweep_of_a_long_name_" + "y" * 40)
    (write_run(root, "baseline", 9) / "config.json").write_text("{")
    reference = "batchformer_official_loss"
    return write_page(find_runs(root), root.parent / "report.html", reference=reference)


@pytest.mark.parametrize(("width", "theme"), [(1280, "light"), (390, "dark"), (320, "light")])
def test_it_loads_fits_and_follows_the_theme(
    open_page: Opener, page_file: Path, width: int, theme: str
) -> None:
    page = open_page(page_file, viewport={"width": width, "height": 844}, color_scheme=theme).page
    for folded in (True, False):
        if not folded:
            page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true })")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert page.evaluate(CUT) == []
        sizes = page.evaluate(SIZES)
        assert len(sizes) > 4
        assert all(wide > 0 and high > 0 and loaded for _, wide, high, loaded in sizes), sizes
    ground, text, figure = (
        sum(map(float, page.evaluate(COLOUR, [selector, value])[:3])) / 765
        for selector, value in (
            ("body", "backgroundColor"),
            ("body", "color"),
            ("figure svg text", "fill"),
        )
    )
    if theme == "light":
        assert ground > 0.9 and text < 0.4 and figure < 0.4
    else:
        assert ground < 0.15 and text > 0.6 and figure > 0.6
    if width == 1280:
        page = open_page(page_file, viewport={"width": width, "height": 844}).page
        assert page.evaluate(LONG_CAPTIONS) == []
        assert min(page.evaluate(GAPS)) > 15.9, "no card touches what comes below it"
        ends = page.evaluate(EMPTY_ENDS)
        assert ends and max(ends) < 250, "two columns end together"
    if width == 390:
        assert page.evaluate(SMALLEST_TEXT) >= 8, "figures can be read on a phone"


@pytest.mark.parametrize("heights", [(900, 100), (100, 900), (900, 100, 100)])
def test_no_card_touches_one_of_the_next_row(
    open_page: Opener, tmp_path: Path, heights: tuple[int, ...]
) -> None:
    figures = [Section("a", f'<svg viewBox="0 0 486 {high}"></svg>', "") for high in heights]
    sections = [*figures, Section("wide", "", "", wide=True)]
    values = {"title": "", "sections": sections, "policy": "", "counts_of_loader": False}
    (tmp_path / "page.html").write_text(rendered("insight.html.jinja", **values))
    page = open_page(tmp_path / "page.html", viewport={"width": 1280, "height": 900}).page
    gaps = page.evaluate(GAPS)
    assert gaps and all(gap == pytest.approx(16, abs=0.1) for gap in gaps)
