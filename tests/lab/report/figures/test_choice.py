"""The epoch that classes of validation chose: curves, dots and words."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from batchformer.lab.report.figures.choice import draw, gather, make
from helpers.run_folders import RunTree, change_arrays
from helpers.simulated_networks import known


@pytest.fixture
def chosen(tree: RunTree) -> RunTree:
    with_choice(tree.write("baseline", 1), [10.0, 40.0, 30.0])
    with_choice(tree.write("baseline", 0), [20.0, 30.0, 50.0])
    with_choice(tree.write("batchformer", 0), [5.0, 15.0, 10.0])
    return tree


def with_choice(folder: Path, scores: list[float]) -> None:
    """Epochs 50, 100, ...; the best is chosen, the first of equals."""
    epochs = 50 * np.arange(1, len(scores) + 1)
    chosen = epochs[int(np.argmax(scores))]
    kept = {"choice_epochs": epochs, "choice_hm": np.array(scores), "chosen_epoch": chosen}
    change_arrays(folder, **kept)


def test_numbers_lines_dots_and_words_by_hand(chosen: RunTree) -> None:
    found = known(gather(chosen.group()))
    assert list(found.curves) == ["baseline", "batchformer"]
    curve = found.curves["baseline"]
    assert (curve.steps, curve.mean) == ([50.0, 100.0, 150.0], [15.0, 35.0, 40.0])
    assert (curve.low, curve.high) == ([10.0, 30.0, 30.0], [20.0, 40.0, 50.0])
    assert found.chosen == {
        "baseline": {0: (150, 50.0), 1: (100, 40.0)},
        "batchformer": {0: (100, 15.0)},
    }
    assert list(found.chosen["baseline"]) == [0, 1]
    (axes,) = draw(found).axes
    dots = [line for line in axes.lines if line.get_marker() == "o"]
    assert [np.asarray(dot.get_xdata()).tolist() for dot in dots] == [[150, 100], [100]]
    assert len(axes.lines) == 4 and axes.get_xlabel() == "Epoch"
    made = make(found)
    assert "baseline 2, batchformer 1" in made.caption.text
    (table,) = made.terminal_tables
    assert table.rows == [
        ("baseline", "0", "150", "50.00"),
        ("baseline", "1", "100", "40.00"),
        ("batchformer", "0", "100", "15.00"),
    ]


def test_other_runs_chose_nothing(tree: RunTree) -> None:
    tree.write("baseline", 0)
    assert gather(tree.group()) is None
