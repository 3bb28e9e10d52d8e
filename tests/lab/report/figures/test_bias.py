"""Curves of seen against unseen pairs: which are shown, and what their mean is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from batchformer.lab.report.figures.bias import gather, make
from batchformer.lab.report.results.names import COLOURS
from helpers.run_folders import RunTree, change_arrays
from helpers.simulated_networks import known


@pytest.fixture
def curves(tree: RunTree) -> RunTree:
    """The baseline falls from 60, or 80, to 0 over 0..40; the other arm is flat."""
    for seed, start in ((0, 60.0), (1, 80.0)):
        with_curve(tree.write("baseline", seed), [0.0, 20.0, 40.0], [start, start / 2, 0.0])
        with_curve(tree.write("batchformer", seed), [50.0, 0.0], [10.0, 10.0])  # in any order
    return tree


def with_curve(folder: Path, unseen: list[float], seen: list[float], of: str = "pairs") -> None:
    arrays = {"bias_unseen": np.array(unseen), "bias_seen": np.array(seen), "bias_of": np.array(of)}
    change_arrays(folder, **arrays)


def test_the_mean_over_seeds_by_hand_and_the_figure_has_it_beside_every_seed(
    curves: RunTree,
) -> None:
    found = known(gather(curves.group()))
    assert list(found.by_arm) == ["baseline", "batchformer"]
    unseen, seen = found.mean("baseline")
    assert (unseen[0], unseen[-1]) == (0.0, 40.0)
    assert seen == pytest.approx(70 * (1 - unseen / 40))
    assert found.mean("batchformer")[1] == pytest.approx(np.full(101, 10.0))
    made = make(found)
    (axes,) = made.draw().axes
    assert len(axes.lines) == 2 * (2 + 1)
    thick = [line for line in axes.lines if line.get_linewidth() > 1]
    assert [line.get_color() for line in thick] == [COLOURS["baseline"], COLOURS["batchformer"]]
    rising = all(np.all(np.diff(line.get_xdata()) >= 0) for line in axes.lines)
    assert rising and axes.get_xlim()[0] == 0


def test_a_mean_ends_where_the_first_seed_does_and_says_so(curves: RunTree) -> None:
    with_curve(curves.write("baseline", 2), [0.0, 5.0], [10.0, 0.0])
    assert known(gather(curves.group())).mean("baseline")[0][-1] == 5.0
    assert "as far as all of them reach" in make(known(gather(curves.group()))).caption.text


@pytest.mark.parametrize("of", ["pairs", "classes"])
def test_words_say_what_is_seen_and_over_how_many_seeds(tree: RunTree, of: str) -> None:
    folder = tree.write("baseline", 0)
    with_curve(folder, [0.0, 10.0], [10.0, 0.0], of)
    if of == "pairs":
        change_arrays(folder, bias_of=None)  # as if not said
    made = make(known(gather(tree.group())))
    assert made.title == f"Seen and unseen {of}"
    assert f"unseen {of}" in made.caption.text and "over 1 seed" in made.caption.text
    assert ("pairs" in made.caption.text) == (of == "pairs")
    (axes,) = made.draw().axes
    assert axes.get_xlabel() == f"Accuracy on unseen {of}, %"
    assert len(axes.lines) == 1, "one seed is its own mean"
    (table,) = made.terminal_tables
    first, last = ("baseline", "0.00", "10.00"), ("baseline", "10.00", "0.00")
    assert (table.rows[0], table.rows[-1], len(table.rows)) == (first, last, 6)


def test_runs_without_a_bias_have_no_curve(tree: RunTree) -> None:
    tree.write("baseline", 0)
    assert gather(tree.group()) is None
