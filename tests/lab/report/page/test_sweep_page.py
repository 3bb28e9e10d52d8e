"""A sweep's part of the page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from batchformer.lab.report.page.html import render
from batchformer.lab.report.results.runs import find_runs
from helpers.run_folders import RunTree, change_json, write_sweep

PAPER = {"1": {"baseline": {"all": 41.0}, "batchformer": {"all": 43.2}}, "2": {}, "4": {}}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    cells = [("baseline", "1"), *(("batchformer", level) for level in PAPER)]
    values = {
        cell: {
            s: {"all": 50.0 + i + s * (1 + i / 9), "few": 20.0 + s, "ece": 12.0 + 2 * s}
            for s in range(3)
        }
        for i, cell in enumerate(cells)
    }
    write_sweep(tmp_path / "runs", values, levels=PAPER)
    return tmp_path / "runs"


def text_of(page: str) -> str:
    return " ".join(
        re.sub(r"<[^>]+>", " ", re.sub(r"<style.*?</style>", "", page, flags=re.S)).split()
    )


def test_it_has_a_table_a_figure_with_words_and_every_run(root: Path) -> None:
    page = render(find_runs(root))
    (figure,) = re.findall(r"<figure.*?</figure>", page, flags=re.DOTALL)
    label = re.search(r'aria-label="(Dot plot[^"]*)"', figure)
    assert label and "All of batchformer, 1: 52.11" in label[1] and 'role="img"' in figure
    text = text_of(page)
    for words in (
        "with BatchFormer (levels: layers)",
        "Sweep of layers · paper: Layers · levels are compared with 1",
        "any baseline, 3 seeds 51.00",
        "2 batchformer, 3 seeds",
        "paper 43.2",
        "paper +2.2",
        "Few not tested ECE not tested, lower is better",
        "21.00 sd 1.00 14.00 sd 2.00",
        "This sweep holds 5 comparisons",
        "corrected for every comparison of its sweep or, outside sweeps, on this page",
    ):
        assert words in text, words
    for words in ("No run has finished", "no comparison", "as in the paper"):
        assert words not in text, words
    assert '<ul class="cards">' not in page, "an overview of one"
    every = page[page.index("Every run") :]
    assert every.count("<tr><td>") == 12
    assert not re.search(r"https?://|<script|@import|url\((?!#)", page)
    assert page.count('class="scroll') == page.count('role="region" aria-label=')
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))


def test_it_stands_beside_recipes_and_is_not_counted_among_them(
    root: Path, no_figures: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    RunTree(root).write_scores({"baseline": (58.0, 60.1, 62.3), "batchformer": (61.0, 63.6, 66.1)})
    monkeypatch.setattr("batchformer.lab.report.page.html.sweep_section", lambda *_: None)
    text = text_of(render(find_runs(root)))
    assert "Beside its sweeps this page holds 1 comparison." in text
    assert text.index("Sweep of layers") < text.index("A long tail of ten classes")


def test_nothing_finished_is_said(root: Path) -> None:
    for path in root.rglob("result.json"):
        path.unlink()
    text = text_of(render(find_runs(root)))
    assert "No level shares a finished seed with layers 1 yet" in text
    assert "Not included: depth/1/baseline/seed0 has not finished" in text


def test_words_from_the_description_cannot_inject_markup(root: Path) -> None:
    bad = "<img src=x onerror=alert(1)>"
    change_json(root / "depth/sweep.json", factor=bad, table=bad, name=bad)
    page = render(find_runs(root))
    assert "<img" not in page and "&lt;img src=x" in page


def test_several_sweeps_have_an_overview(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = {("batchformer", "1"): {0: {"all": 50.0}, 1: {"all": 51.0}}}
    write_sweep(root, values, name="width")
    monkeypatch.setattr("batchformer.lab.report.page.html.sweep_section", lambda *_: None)
    page = render(find_runs(root))
    assert page == render(find_runs(root))
    cards = page[page.index('<ul class="cards">') : page.index('<section class="recipe')]
    assert "#sweep-1" in cards and "#sweep-2" in cards and "width" in cards
