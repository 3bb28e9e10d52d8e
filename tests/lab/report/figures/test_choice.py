"""The epoch that classes of validation chose: curves, dots and words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from batchformer.lab.report.figures.choice import draw, gather, make
from batchformer.lab.report.page.sections import sections_of
from batchformer.lab.report.results.configuration import one_group
from batchformer.lab.report.results.runs import find_runs

Writer = Callable[..., Any]


def with_choice(folder: Path, scores: list[float]) -> None:
    """Epochs 50, 100, ...; the best is chosen, the first of equals."""
    with np.load(folder / "figures.npz") as arrays:
        kept = dict(arrays)
    epochs = 50 * np.arange(1, len(scores) + 1)
    chosen = epochs[int(np.argmax(scores))]
    new = {"choice_epochs": epochs, "choice_hm": np.array(scores), "chosen_epoch": chosen}
    np.savez(folder / "figures.npz", **kept, **new)


@pytest.fixture
def chosen(write_run: Writer, runs_root: Path) -> Path:
    with_choice(write_run("baseline", 1), [10.0, 40.0, 30.0])
    with_choice(write_run("baseline", 0), [20.0, 30.0, 50.0])
    with_choice(write_run("batchformer", 0), [5.0, 15.0, 10.0])
    return runs_root


def test_means_and_choices_by_hand(chosen: Path) -> None:
    found = gather(one_group(find_runs(chosen)))
    assert found is not None and list(found.curves) == ["baseline", "batchformer"]
    curve = found.curves["baseline"]
    assert (curve.steps, curve.mean) == ([50.0, 100.0, 150.0], [15.0, 35.0, 40.0])
    assert (curve.low, curve.high) == ([10.0, 30.0, 30.0], [20.0, 40.0, 50.0])
    assert found.chosen == {
        "baseline": {0: (150, 50.0), 1: (100, 40.0)},
        "batchformer": {0: (100, 15.0)},
    }
    assert list(found.chosen["baseline"]) == [0, 1]


def test_the_figure_has_a_line_and_a_dot_for_every_choice(chosen: Path) -> None:
    found = gather(one_group(find_runs(chosen)))
    assert found is not None
    (axes,) = draw(found).axes
    dots = [line for line in axes.lines if line.get_marker() == "o"]
    assert [np.asarray(dot.get_xdata()).tolist() for dot in dots] == [[150, 100], [100]]
    assert len(axes.lines) == 4 and axes.get_xlabel() == "Epoch"


def test_numbers_and_words_say_what_was_chosen(chosen: Path) -> None:
    made = make(one_group(find_runs(chosen)))
    assert made is not None and "baseline 2, batchformer 1" in made.caption.note
    (table,) = made.folded_tables
    assert table.rows == [
        ("baseline", "0", "150", "50.00"),
        ("baseline", "1", "100", "40.00"),
        ("batchformer", "0", "100", "15.00"),
    ]
    assert "The choice of the epoch" in [
        section.title for section in sections_of(one_group(find_runs(chosen)), "a")
    ]


def test_other_runs_chose_nothing(write_run: Writer, runs_root: Path) -> None:
    write_run("baseline", 0)
    assert make(one_group(find_runs(runs_root))) is None
