"""The page in a real browser, at the width of a desk and of a phone, light and dark."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from batchformer.lab.report.page.html import write_page
from batchformer.lab.report.results.runs import find_runs

sync_api = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
SIZES = """() => [...document.querySelectorAll('img, svg')].map(element => {
    const box = element.getBoundingClientRect();
    return [element.tagName, box.width, box.height, element.complete ?? true];
})"""
CUT = """() => [...document.querySelectorAll('main *')].filter(element => {
    const box = element.getBoundingClientRect();
    return !element.closest('.scroll, svg') && box.right > innerWidth + 0.5;
}).map(element => element.outerHTML.slice(0, 120))"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def page_file(
    tmp_path_factory: pytest.TempPathFactory,
    make_run: Callable[..., Path],
    make_recipe: Callable[..., dict[str, Any]],
    make_sweep: Callable[..., Path],
    add_insight: Callable[..., Path],
) -> Path:
    """A crowded page: long names, many arms, many classes, relations, a sweep, a damaged run.

    The reference is the arm with the longest name, which stands in every heading.
    """
    root = tmp_path_factory.mktemp("browser") / "runs"
    long = make_recipe("a_very_long_recipe_name_without_any_space_" + "x" * 40)
    for arm in ("baseline", "batchformer", "batchformer_self", "batchformer_official_loss"):
        for seed in range(3):
            make_run(root, arm, seed, recipe=long, classes=120, per_class_images=10)
    for arm in ("baseline", "batchformer"):
        for seed in range(2):
            add_insight(make_run(root, arm, seed), heads=6)
    cells = [("baseline", "1"), *(("batchformer", level) for level in ("1", "2", "4", "8", "16"))]
    scores = {seed: {"all": 50.0 + seed, "few": 20.0 + seed % 2} for seed in range(3)}
    make_sweep(root, dict.fromkeys(cells, scores), name="a_sweep_of_a_long_name_" + "y" * 40)
    (make_run(root, "baseline", 9) / "config.json").write_text("{")
    reference = "batchformer_official_loss"
    return write_page(find_runs(root), root.parent / "report.html", reference=reference)


@pytest.mark.parametrize(("width", "theme"), [(1280, "light"), (390, "dark"), (320, "light")])
def test_it_loads_fits_and_says_nothing_to_the_console(
    browser: Any, page_file: Path, width: int, theme: str
) -> None:
    context = browser.new_context(viewport={"width": width, "height": 844}, color_scheme=theme)
    page = context.new_page()
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("requestfailed", lambda request: complaints.append(request.url))
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.goto(page_file.as_uri())
    for folded in (True, False):
        if not folded:
            page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true })")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert page.evaluate(CUT) == []
        sizes = page.evaluate(SIZES)
        assert len(sizes) > 4
        assert all(wide > 0 and high > 0 and loaded for _, wide, high, loaded in sizes), sizes
    assert complaints == []
    assert [url for url in requests if not url.startswith("data:")] == [page_file.as_uri()]
    context.close()


def test_the_theme_of_the_reader_is_followed(browser: Any, page_file: Path) -> None:
    def brightness(theme: str, selector: str, value: str) -> float:
        page = browser.new_page(color_scheme=theme)
        page.goto(page_file.as_uri())
        colour = page.evaluate(
            f"getComputedStyle(document.querySelector('{selector}')).{value}.match(/[0-9.]+/g)"
        )
        page.close()
        return sum(map(float, colour[:3])) / 765

    assert brightness("light", "body", "backgroundColor") > 0.9
    assert brightness("dark", "body", "backgroundColor") < 0.15
    for selector, value in (("body", "color"), ("figure svg text", "fill")):
        assert brightness("light", selector, value) < 0.4, selector
        assert brightness("dark", selector, value) > 0.6, selector


def test_text_in_figures_can_be_read_on_a_phone(browser: Any, page_file: Path) -> None:
    page = browser.new_page(viewport={"width": 390, "height": 844})
    page.goto(page_file.as_uri())
    scale = page.evaluate(
        "(() => { const svg = document.querySelector('figure svg');"
        " return svg.getBoundingClientRect().width / svg.viewBox.baseVal.width })()"
    )
    smallest = page.evaluate(
        "Math.min(...[...document.querySelectorAll('figure svg text')]"
        ".map(text => parseFloat(getComputedStyle(text).fontSize)))"
    )
    assert scale * smallest >= 8
    page.close()
