from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from batchformer.insight.page.html import Section
from batchformer.lab.report.page.html import render, write_page
from batchformer.lab.report.results.configuration import RunGroup
from helpers.markup import Markup
from helpers.run_folders import RunTree, change_arrays, recipe_of


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> RunTree:
    """Three arms of one recipe, another with two seeds, a damaged and an unfinished run."""
    tree = RunTree(tmp_path_factory.mktemp("several") / "runs")
    tree.write_pairs(3, "baseline", "batchformer", "batchformer_self")
    tree.write_pairs(2, recipe=recipe_of("second", paper={}))
    tree.write("baseline", 5, finished=False)
    (tree.write("baseline", 6) / "config.json").write_text("{")
    (tree.write("baseline", 7) / "figures.npz").unlink()
    return tree


@pytest.fixture(scope="module")
def page(several: RunTree) -> str:
    """The page of these runs, as it is by default."""
    path = several.root.parent / "new" / "report.html"
    return write_page(several.runs(), path, title="A title").read_text()


def test_the_page_is_well_formed_and_needs_nothing_else(page: str) -> None:
    found = Markup(page)
    ids = found.values("id")
    assert len(ids) == len(set(ids))
    for link in found.values("href", "src"):
        assert link == "data:," or link.removeprefix("#") in ids, link
    assert not re.search(r"https?://|<script|@import|url\((?!#)", page)


def test_it_shows_numbers_verdicts_the_paper_provenance_and_what_is_not_included(page: str) -> None:
    text = Markup(page).text
    for words in (
        "A title",
        "batchformer − baseline",
        "This page holds 15 comparisons",
        "too few seeds",
        "paper 51.7 (+1.0)",
        "The 95% interval is Student's t over seeds",
        "bootstrap interval over the 400 test images",
        "Example CPU, 2 cores, 8 GB",
        "5f1d" * 16,
        "batchformer train tail --arm baseline --seed 0",
        "train.batch_size",
        "control: attention masked to the diagonal",
    ):
        assert words in text, words
    part = text[text.index("Not included") :]
    assert "tail/baseline/seed5 has not finished" in part
    assert "tail/baseline/seed6 is damaged: config.json" in part
    assert "In the tables, but incomplete: tail/baseline/seed7: figures.npz is missing" in part


def test_the_answer_comes_first_and_how_to_read_it_beside_it(
    tree: RunTree, no_figures: None
) -> None:
    tree.write_pairs(3)
    page = render(tree.runs())
    text = Markup(page).text
    verdict = re.search(r'<p class="says">(.*?)</p>', page)
    assert verdict is not None
    assert page.count("<h1") == 1 and '<h1 id="recipe-1-title">tail</h1>' in page
    order = [
        text.index(words)
        for words in (
            f"{verdict[1]} batchformer − baseline: ",
            "The arms baseline and batchformer were trained from the same 3 seeds, and a paired t",
            "How to read it",
            "This page holds 5 comparisons",
            "All is the accuracy on all test images.",
        )
    ]
    assert order == sorted(order)
    assert "AUC" not in text, "only metrics of this page are explained"


def test_what_describes_or_chose_is_shown_without_strip_and_verdict(
    tree: RunTree, tmp_path: Path, no_figures: None
) -> None:
    other = RunTree(tmp_path / "far")  # what describes does not set the scale of the others
    for seed in range(3):
        scores = {"knn": 20.5 + 2 * seed, "uniformity": -1.3 - seed / 100, "val_loss": 1.0}
        for each, uniformity in ((tree, -0.8), (other, -90.0)):
            before = {"knn": 20.0 + seed, "uniformity": uniformity, "val_loss": 1.0 + seed}
            each.write("baseline", seed, scores=before)
            each.write("batchformer", seed, scores=scores)
    page = render(tree.runs())
    near, far = (re.findall("<svg.*?</svg>", one, re.S) for one in (page, render(other.runs())))
    assert near[0] == far[0]
    # Differences 0.5, 1.5, 2.5: mean 1.5, interval to 3.98, which is 10 of 11 parts of a half.
    places = [float(x) for x in re.findall(r'class="(?:reach|dot)" d="M([\d.]+) ', near[0])]
    assert places == [pytest.approx(x, abs=0.01) for x in (38.77, 67.11)]
    text = Markup(page).text
    assert "This page holds 1 comparison." in text
    assert "Uniformity<small>not tested</small>" in page
    assert "val loss<small>not tested, lower is better</small>" in page
    assert "Descriptions of features" in page and "Scores of validation data" in page
    assert "−0.510 [−0.535, −0.485]" in text
    table = page[page.index("<table") : page.index("</table>")]
    assert table.count("<svg") == table.count('class="verdict') == 1, "of k-NN alone"
    assert table.count("lower is better") == 1
    few = render(run for run in tree.runs() if run.seed < 2)
    assert "−1.300, −1.310" in Markup(few).text, "with typographic minus signs"


def test_every_figure_and_region_has_words_for_those_who_cannot_see_it(page: str) -> None:
    figures = re.findall(r"<figure.*?</figure>", page, flags=re.DOTALL)
    assert len(figures) >= 6
    for figure in figures:
        assert re.search(r'<svg [^>]*role="img"[^>]*aria-label="[^"]{40,}"', figure) or re.search(
            r'<svg [^>]*aria-label="[^"]{40,}"[^>]*role="img"', figure
        )
        assert "<figcaption>" in figure
    assert page.count('class="scroll') == page.count('role="region" aria-label=')
    assert '<html lang="en">' in page


def test_names_from_files_cannot_inject_markup(tree: RunTree) -> None:
    bad = "<img src=x onerror=alert(1)>"
    recipe = recipe_of("hostile", summary=bad, model=bad, table='"><b>')
    folder = tree.write("baseline", 0, recipe=recipe, provenance={"command": bad})
    change_arrays(folder, classes=np.array([bad] * 10), confusion=None)
    (folder / "metrics.jsonl").write_text("")  # only the figure with names is drawn
    page = render(tree.runs(), title=bad)
    assert "<img" not in page
    assert "&lt;img src=x" in page and Markup(page).elements


def test_equal_runs_give_equal_pages(several: RunTree, no_figures: None) -> None:
    """That figures are equal is in ``test_sections.py``."""
    assert render(several.runs()) == render(several.runs())


def test_no_finished_run_is_a_page_that_says_so(tree: RunTree) -> None:
    tree.write("baseline", 0, finished=False)
    text = Markup(render(tree.runs())).text
    assert "No run has finished" in text
    assert "tail/baseline/seed0 has not finished" in text
    assert "nothing to compare" in Markup(render([])).text


def test_a_failure_leaves_the_old_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.html"
    path.write_text("old")

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        write_page([], path)
    assert path.read_text() == "old"
    monkeypatch.undo()
    write_page([], path)
    assert path.read_text().startswith("<!doctype html>")


def test_the_page_names_the_reference_everywhere(
    several: RunTree, page: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def named(group: RunGroup, prefix: str) -> list[Section]:
        return [Section("Figure", "", f"A figure of {group.name} against {group.reference}")]

    monkeypatch.setattr("batchformer.lab.report.page.html.sections_of", named)
    against_control = render(several.runs(), reference="batchformer_self")
    text = Markup(against_control).text
    for words in (
        "to batchformer_self, same seeds",
        "A figure of tail against batchformer_self",
        "batchformer compared with batchformer_self",
        "second has no finished batchformer_self: nothing to compare with",
        "This page holds 10 comparisons",
    ):
        assert words in text, words
    assert "to the baseline" not in text
    assert "− baseline" not in text
    assert "paper 51.7 (" not in text, "the paper has no difference to the control"
    tail = text[text.index("batchformer_self control: attention") :]
    assert tail.index("baseline the network") < tail.index("batchformer BatchFormer as in")
    by_default = Markup(page).text
    assert "to the baseline, same seeds" in by_default
    assert "compared with" not in by_default
    swatches = []
    for seen in (page, against_control):
        found = re.findall(r'background: (#\w+)"[^>]*></span><strong>([\w.]+)</strong>', seen)
        swatches.append({arm: colour for colour, arm in found})
    assert swatches[0] == swatches[1], "an arm has one colour, whatever it is compared with"
    assert len(swatches[0]) == 3
