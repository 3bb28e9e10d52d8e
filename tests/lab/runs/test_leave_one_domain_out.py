"""Trained runs over every target: their mean, and what a stop or a failure leaves."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from batchformer.lab.config.recipe import Recipe
from batchformer.lab.recipes import find_recipe
from batchformer.lab.report.results.runs import find_runs
from batchformer.lab.runs import run as runs
from batchformer.lab.runs.run import Run
from helpers import lab_runs
from helpers.lab_runs import (
    StopsAt,
    bytes_of,
    compare,
    config_of,
    evaluations_of,
    metrics_of,
    records_of,
    result_of,
    train_one,
)

pytestmark = pytest.mark.usefixtures("three_angles")

CPU = torch.device("cpu")
ANGLES = ("r0", "r45", "r75")
ARMS, SEEDS = ("baseline", "batchformer"), (0, 1)


def short() -> Recipe:
    options = {"batch_size": 8, "updates": 4, "eval_every": 2, "log_every": 1}
    return lab_runs.short(find_recipe("rotated_digits_erm"), **options)


@pytest.fixture(scope="module")
def compared(three_angles: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole comparison; tests that change it work on a copy."""
    root = tmp_path_factory.mktemp("compared")
    folders = list(compare(short(), ARMS, SEEDS, root=root))
    assert folders == [
        root / f"rotated_digits_erm/{arm}/seed{seed}" for seed in SEEDS for arm in ARMS
    ]
    return root


def same_results(one: Path, other: Path) -> None:
    """Scores, records and figures of a run and of all its parts are equal."""
    for name in ("", *ANGLES):
        a, b = one / name, other / name
        assert metrics_of(a) == metrics_of(b)
        assert records_of(a) == records_of(b)
        with np.load(a / "figures.npz") as mine, np.load(b / "figures.npz") as others:
            assert set(mine.files) == set(others.files)
            for key in mine.files:
                np.testing.assert_array_equal(mine[key], others[key])


def test_the_folders_and_the_result_of_a_comparison(compared: Path) -> None:
    for arm in ARMS:
        for seed in SEEDS:
            folder = compared / f"rotated_digits_erm/{arm}/seed{seed}"
            own = {path.name for path in folder.iterdir()}
            assert own == {"config.json", "figures.npz", "metrics.jsonl", "result.json", *ANGLES}
            parts = {name: metrics_of(folder / name) for name in ANGLES}
            expected = {name: parts[name][name] for name in ANGLES}
            found = metrics_of(folder)
            assert list(found) == ["average", *ANGLES, "val"]
            assert found == pytest.approx(
                {
                    "average": sum(expected.values()) / 3,
                    **expected,
                    "val": sum(part["val"] for part in parts.values()) / 3,
                }
            )
            config = config_of(folder)
            assert config["recipe"]["data"]["target"] == "each" and "draws" not in config
            for name in ANGLES:
                own_config = config_of(folder / name)
                assert own_config["recipe"]["data"]["target"] == name
                assert len(own_config["draws"]["split_sha256"]) == 64
            result = result_of(folder)
            assert result["updates"] == 12 and result["selected"] == "val"
            assert {record["step"] for record in evaluations_of(folder)} == {2, 4}
            assert {record["step"] for record in records_of(folder)} == {1, 2, 3, 4}


def test_arms_are_paired_target_by_target(compared: Path) -> None:
    """Arms of a seed hold out the same images of every target; seeds differ."""
    draws = {
        (arm, seed, name): config_of(compared / f"rotated_digits_erm/{arm}/seed{seed}/{name}")[
            "draws"
        ]
        for arm in ARMS
        for seed in SEEDS
        for name in ANGLES
    }
    for name in ANGLES:
        for seed in SEEDS:
            assert draws["baseline", seed, name] == draws["batchformer", seed, name]
        assert draws["baseline", 0, name] != draws["baseline", 1, name]


def test_a_finished_whole_is_not_repeated(compared: Path, tmp_path: Path) -> None:
    root = tmp_path / "copy"
    shutil.copytree(compared, root)
    before = bytes_of(root)
    assert len(list(compare(short(), ARMS, SEEDS, root=root))) == 4
    assert bytes_of(root) == before


def test_stopped_in_the_middle_and_run_again_equals_unbroken(
    compared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = runs.Run.feed

    def feed(self: Run) -> Any:
        return StopsAt(made(self), 3) if self.part == "r45" else made(self)

    with monkeypatch.context() as patch:
        patch.setattr(runs.Run, "feed", feed)
        with pytest.raises(OSError, match="the disk is gone"):
            train_one(short(), "batchformer", 0, root=tmp_path)
    folder = tmp_path / "rotated_digits_erm/batchformer/seed0"
    assert (folder / "r0/result.json").exists() and not (folder / "r75").exists()
    assert list((folder / "r45/checkpoints").glob("000000002.*"))
    assert not (folder / "r45/result.json").exists() and not (folder / "result.json").exists()
    assert find_runs(folder)[0].state != "finished"
    finished = bytes_of(folder / "r0")
    train_one(short(), "batchformer", 0, root=tmp_path)
    assert bytes_of(folder / "r0") == finished
    same_results(folder, compared / "rotated_digits_erm/batchformer/seed0")


class Poisoned:
    """Batches whose images are not numbers."""

    def __init__(self, feed: Any) -> None:
        self.feed, self.per_epoch = feed, feed.per_epoch

    def batch(self, step: int) -> dict[str, Any]:
        batch = self.feed.batch(step)
        return {**batch, "x": batch["x"] * math.nan}


def test_a_target_that_diverges_is_named_and_the_others_go_on(
    compared: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    made = runs.Run.feed

    def feed(self: Run) -> Any:
        wild = self.part == "r0" and self.seed == 0
        return Poisoned(made(self)) if wild else made(self)

    monkeypatch.setattr(runs.Run, "feed", feed)
    folders = list(compare(short(), ["baseline"], SEEDS, root=tmp_path))
    arm = tmp_path / "rotated_digits_erm/baseline"
    assert folders == [arm / "seed1"]
    said = capsys.readouterr().err
    assert "rotated_digits_erm baseline seed 0 r0: The 'loss' part of the loss became nan" in said
    assert said.count("became nan") == 1
    assert not (arm / "seed0/result.json").exists() and not (arm / "seed0/r0/result.json").exists()
    kept = compared / "rotated_digits_erm/baseline"
    for name in ("r45", "r75"):
        assert metrics_of(arm / "seed0" / name) == metrics_of(kept / "seed0" / name)
    same_results(arm / "seed1", kept / "seed1")


def test_the_only_part_of_a_single_target_has_the_scores_of_the_part(
    compared: Path, tmp_path: Path
) -> None:
    single = short().changed(data={"target": "r45"})
    folder = train_one(single, "baseline", 0, root=tmp_path)
    assert list(metrics_of(folder)) == ["r45", "val", "val_loss"]
    assert metrics_of(folder) == metrics_of(compared / "rotated_digits_erm/baseline/seed0/r45")
