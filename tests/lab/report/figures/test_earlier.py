"""Numbers of the figures that every run has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from batchformer.lab.report.figures import earlier
from batchformer.lab.report.results.configuration import one_group
from batchformer.lab.report.results.runs import find_runs

Writer = Callable[..., Any]


def test_training_has_the_ends_of_the_curves(write_run: Writer, runs_root: Path) -> None:
    for seed in range(2):
        write_run("baseline", seed)
    runs = find_runs(runs_root)
    shown = earlier.training(one_group(runs))
    assert shown is not None
    (table,) = shown.folded
    losses = [row for row in table.rows if row[1] == "Training loss"]
    assert len(losses) == 5 and losses[0][2] == "10" and losses[-1][2] == "400"
    last = [run.series("train", "loss")[400] for run in runs]
    assert losses[-1][3] == f"{np.mean(last):.2f}"
    assert losses[-1][4] == f"{min(last):.2f} to {max(last):.2f}"
    assert len(shown.figure().axes) == 2


def test_classes_have_accuracy_and_difference(write_run: Writer, runs_root: Path) -> None:
    for arm in ("baseline", "batchformer"):
        write_run(arm, 0)
    shown = earlier.classes(one_group(find_runs(runs_root)))
    assert shown is not None
    (table,) = shown.folded
    columns = ("class", "images", "baseline", "batchformer", "batchformer - baseline")
    assert table.columns == columns
    first = table.rows[0]
    assert first[:2] == ("class 0", "500")
    assert float(first[4]) == pytest.approx(float(first[3]) - float(first[2]), abs=0.11)


def test_biases_are_read_along_the_mean_curve(write_run: Writer, runs_root: Path) -> None:
    folder = write_run("baseline", 0)
    np.savez(
        folder / "figures.npz", bias_unseen=np.array([0.0, 50.0]), bias_seen=np.array([40.0, 0.0])
    )
    shown = earlier.bias(one_group(find_runs(runs_root)))
    assert shown is not None
    (table,) = shown.folded
    assert table.rows[0] == ("baseline", "0.00", "40.00")
    assert table.rows[-1] == ("baseline", "50.00", "0.00")
    assert len(table.rows) == 6


def test_probes_are_read_by_epoch(write_run: Writer, recipe_of: Writer, runs_root: Path) -> None:
    recipe = recipe_of(method="linear_probe")
    write_run("baseline", 0, recipe=recipe)
    runs = find_runs(runs_root)
    shown = earlier.probe(one_group(runs))
    assert shown is not None
    (table,) = shown.folded
    assert table.columns == ("arm", "epoch", "All")
    last = [record for record in runs[0].metrics if record["kind"] == "eval"][-1]
    assert table.rows[-1] == ("baseline", "10", f"{last['all']:.2f}")


def test_runs_without_the_numbers_have_no_figure(write_run: Writer, runs_root: Path) -> None:
    folder = write_run("baseline", 0)
    (folder / "figures.npz").unlink()
    (folder / "metrics.jsonl").write_text("")
    group = one_group(find_runs(runs_root))
    for make in (earlier.training, earlier.classes, earlier.bias, earlier.probe):
        assert make(group) is None
