"""Curves of seen against unseen pairs: which are shown, and what their mean is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from batchformer.lab.report.figures.bias import draw, gather, make
from batchformer.lab.report.page.sections import sections_of
from batchformer.lab.report.results.configuration import one_group
from batchformer.lab.report.results.names import COLOURS
from batchformer.lab.report.results.runs import find_runs

Writer = Callable[..., Any]


def with_curve(folder: Path, unseen: list[float], seen: list[float]) -> None:
    with np.load(folder / "figures.npz") as arrays:
        kept = dict(arrays)
    np.savez(folder / "figures.npz", bias_unseen=np.array(unseen), bias_seen=np.array(seen), **kept)


@pytest.fixture
def curves(write_run: Writer, runs_root: Path) -> Path:
    """The baseline falls from 60, or 80, to 0 over 0..40; the other arm is flat."""
    for seed, start in ((0, 60.0), (1, 80.0)):
        with_curve(write_run("baseline", seed), [0.0, 20.0, 40.0], [start, start / 2, 0.0])
        with_curve(write_run("batchformer", seed), [50.0, 0.0], [10.0, 10.0])  # in any order
    return runs_root


def test_the_mean_over_seeds_by_hand(curves: Path) -> None:
    found = gather(one_group(find_runs(curves)))
    assert found is not None and list(found.by_arm) == ["baseline", "batchformer"]
    unseen, seen = found.mean("baseline")
    assert (unseen[0], unseen[-1]) == (0.0, 40.0)
    assert seen == pytest.approx(70 * (1 - unseen / 40))
    assert found.mean("batchformer")[1] == pytest.approx(np.full(101, 10.0))


def test_the_figure_has_every_seed_and_the_means(curves: Path) -> None:
    made = make(one_group(find_runs(curves)))
    assert made is not None
    (axes,) = made.draw().axes
    assert len(axes.lines) == 2 * (2 + 1)
    thick = [line for line in axes.lines if line.get_linewidth() > 1]
    assert [line.get_color() for line in thick] == [COLOURS["baseline"], COLOURS["batchformer"]]
    rising = all(np.all(np.diff(line.get_xdata()) >= 0) for line in axes.lines)
    assert rising and axes.get_xlim()[0] == 0


def test_it_is_a_section_of_the_page(curves: Path) -> None:
    sections = sections_of(one_group(find_runs(curves)), "a")
    (section,) = [one for one in sections if one.title == "Seen and unseen pairs"]
    assert "<svg" in section.html and "baseline 2, batchformer 2" in section.note


def test_classes_are_called_so(write_run: Writer, runs_root: Path) -> None:
    folder = write_run("baseline", 0)
    with_curve(folder, [0.0, 10.0], [10.0, 0.0])
    with np.load(folder / "figures.npz") as arrays:
        kept = dict(arrays)
    np.savez(folder / "figures.npz", bias_of=np.array("classes"), **kept)
    runs = find_runs(runs_root)
    sections = sections_of(one_group(runs), "a")
    (section,) = [one for one in sections if one.title == "Seen and unseen classes"]
    assert "pairs" not in section.html + section.note
    found = gather(one_group(runs))
    assert found is not None
    assert draw(found).axes[0].get_xlabel() == "Accuracy on unseen classes, %"


def test_runs_without_a_bias_have_no_curve(write_run: Writer, runs_root: Path) -> None:
    write_run("baseline", 0)
    assert make(one_group(find_runs(runs_root))) is None


def test_one_seed_is_one_line(write_run: Writer, runs_root: Path) -> None:
    with_curve(write_run("baseline", 0), [0.0, 10.0], [10.0, 0.0])
    made = make(one_group(find_runs(runs_root)))
    assert made is not None and len(made.draw().axes[0].lines) == 1
    (table,) = made.folded_tables
    assert (table.rows[0], table.rows[-1]) == (
        ("baseline", "0.00", "10.00"),
        ("baseline", "10.00", "0.00"),
    )
    assert len(table.rows) == 6
