from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from batchformer.report import sections
from batchformer.report.configuration import one_group
from batchformer.report.runs import find_runs
from batchformer.report.sections import Section, sections_of

Writer = Callable[..., Any]


def test_captions_say_what_is_plotted_and_over_how_many_seeds(
    write_run: Writer, runs_root: Path
) -> None:
    for seed in range(4):
        write_run("baseline", seed, classes=40)
    for seed in range(3):
        write_run("batchformer", seed, classes=40)
    curves, classes = sections_of(one_group(find_runs(runs_root)), "p")
    assert "(baseline 4, batchformer 3)" in curves.note
    assert "lowest to the highest seed" in curves.note
    assert "(baseline 4, batchformer 3)" in classes.note
    assert "40 classes" in classes.note
    assert "by chance about 2 of 40 would miss 0" in classes.note
    assert all(section.html.startswith("<svg ") for section in (curves, classes))


def test_with_two_seeds_the_caption_says_there_are_no_intervals(
    write_run: Writer, runs_root: Path
) -> None:
    for seed in range(2):
        write_run("baseline", seed)
        write_run("batchformer", seed)
    classes = sections_of(one_group(find_runs(runs_root)), "p")[1]
    assert "without intervals, since an arm shares only 2 seeds" in classes.note
    assert "95%" not in classes.note


def test_figures_without_numbers_are_left_out(write_run: Writer, runs_root: Path) -> None:
    folder = write_run("baseline", 0)
    (folder / "figures.npz").unlink()
    assert [s.title for s in sections_of(one_group(find_runs(runs_root)), "p")] == ["Training"]
    (folder / "metrics.jsonl").write_text("")
    assert sections_of(one_group(find_runs(runs_root)), "p") == []


def test_a_further_figure_is_one_line(
    write_run: Writer, runs_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run("baseline", 0)
    more = (*sections.SECTIONS, lambda group, prefix: Section("New", f"<b>{prefix}</b>", "note"))
    monkeypatch.setattr(sections, "SECTIONS", more)
    made = sections_of(one_group(find_runs(runs_root)), "p")
    assert made[-1] == Section("New", "<b>p</b>", "note")


@pytest.mark.parametrize(
    ("reference", "words"),
    [(None, "difference to the baseline on"), ("batchformer", "difference to batchformer on")],
)
def test_the_caption_names_the_reference(
    write_run: Writer, runs_root: Path, reference: str | None, words: str
) -> None:
    for seed in range(3):
        write_run("baseline", seed)
        write_run("batchformer", seed)
    curves, classes = sections_of(one_group(find_runs(runs_root), reference), "p")
    assert words in classes.note
    order = "baseline 3, batchformer 3" if reference is None else "batchformer 3, baseline 3"
    assert order in curves.note
    assert order in classes.note
    panel = "batchformer − baseline" if reference is None else "baseline − batchformer"
    assert panel in classes.html
