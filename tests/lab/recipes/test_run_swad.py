"""SWAD from a run's first update to its export: the averaged network beside the other."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from batchformer.cli import main as cli
from batchformer.lab.config.recipe import Recipe
from batchformer.lab.engine.checkpoint import load_newest
from batchformer.lab.engine.log import read_records
from batchformer.lab.models.build import build_model
from batchformer.lab.recipes import find_recipe
from batchformer.lab.report.figures.training import valleys
from batchformer.lab.report.results.runs import read_run
from batchformer.lab.runs.load_run import restore
from batchformer.lab.runs.source_runs import final_state, trained_network
from helpers.lab_runs import (
    evaluations_of,
    metrics_of,
    result_of,
    same,
    scores_of,
    state_of,
    train_one,
)

pytestmark = pytest.mark.usefixtures("three_angles")

CPU = torch.device("cpu")
ANGLES = ("r0", "r45", "r75")
RECIPE = "rotated_digits_coral"


def short(swad: bool = True, target: str = "each", **changes: Any) -> Recipe:
    recipe = find_recipe(RECIPE)
    train = {"batch_size": 8, "updates": 8, "eval_every": 2, "select_on": "last"}
    train["figures"] = False
    return recipe.changed(
        data={"target": target},
        hyper={"swad": swad, "swad_converge": 2, "swad_tolerance": 2},
        train=train,
        **changes,
    )


@pytest.fixture(scope="module")
def root(three_angles: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs over every target, with SWAD and in a folder beside it without."""
    place = tmp_path_factory.mktemp("runs")
    for swad in (True, False):
        train_one(short(swad), "batchformer", 0, root=place / str(swad))
    return place


@pytest.fixture(scope="module")
def averaged(root: Path) -> Path:
    return root / "True" / RECIPE / "batchformer/seed0"


@pytest.fixture(scope="module")
def plain(root: Path) -> Path:
    return root / "False" / RECIPE / "batchformer/seed0"


def test_the_headline_is_swads_and_the_other_network_follows(averaged: Path, plain: Path) -> None:
    found = metrics_of(averaged)
    without = [f"without_swad_{name}" for name in ANGLES]
    held_out = ["val", "without_swad_val"]
    assert list(found) == ["average", *ANGLES, "without_swad", *without, *held_out]
    for name in ANGLES:
        own = metrics_of(averaged / name)
        scored = (name, "val", "val_loss")
        assert list(own) == [*scored, *(f"without_swad_{key}" for key in scored)]
        assert found[name] == own[name]
        assert found[f"without_swad_{name}"] == own[f"without_swad_{name}"]
        # Evaluations by update are of the network in training.
        last = evaluations_of(averaged / name)[-1]
        assert all(last[key] == own[f"without_swad_{key}"] for key in scored)
    assert found["average"] != found["without_swad"]
    # What SWAD adds leaves the training itself as it is.
    assert found["without_swad"] == metrics_of(plain)["average"]
    assert list(metrics_of(plain)) == ["average", *ANGLES, "val"]
    assert found["without_swad_val"] == metrics_of(plain)["val"] != found["val"]


def test_a_run_says_where_the_valley_was(averaged: Path, plain: Path) -> None:
    for name in ANGLES:
        records = read_records(averaged / name / "metrics.jsonl")
        (found,) = [record for record in records if record["kind"] == "swad"]
        assert found["step"] == 8 and 1 <= found["first_update"] <= found["last_update"] <= 8
        assert found["updates"] == found["last_update"] - found["first_update"] + 1
        assert found["converged"] == ("threshold" in found)
        # Evaluated after every second update.
        assert found["first_update"] == 2 * found["first_evaluation"] - 1
        assert found["last_update"] == 2 * found["last_evaluation"]
        values = {key: found[key] for key in found if key not in ("kind", "epoch", "step")}
        assert result_of(averaged / name)["findings"] == {"swad": values}
        assert result_of(averaged)["findings"][f"{name}/swad"] == values
        assert "findings" not in result_of(plain / name)
        kinds = {record["kind"] for record in read_records(plain / name / "metrics.jsonl")}
        assert kinds == {"train", "eval"}
    kinds = {record["kind"] for record in read_records(averaged / "metrics.jsonl")}
    assert kinds == {"train", "eval"}, "a mean of valleys is no valley"
    assert len(result_of(averaged)["findings"]) == len(ANGLES) and "findings" not in result_of(
        plain
    )
    wanted = {name: result_of(averaged / name)["findings"]["swad"] for name in ANGLES}
    assert valleys(read_run(averaged)) == wanted and valleys(read_run(plain)) == {}
    assert valleys(read_run(averaged / "r45")) == {"": wanted["r45"]}


def test_the_averaged_network_is_kept_and_restored(averaged: Path, plain: Path) -> None:
    name = "r45"
    folder = averaged / name
    kept = load_newest(folder / "swad")
    assert kept is not None and not (plain / name / "swad").exists()
    recorded = metrics_of(folder)
    assert scores_of(folder) == {key: recorded[key] for key in (name, "val", "val_loss")}
    with np.load(folder / "figures.npz") as arrays:
        for whose in ("", "without_swad_"):
            right = 100 * arrays[f"{whose}correct"].mean()
            assert right == pytest.approx(recorded[f"{whose}{name}"])
    assert read_run(folder).scores == recorded
    assert same(state_of(folder), kept["method"])


def test_a_checkpoint_of_a_run_with_swad_is_that_of_a_run_without(
    averaged: Path, plain: Path, tmp_path: Path
) -> None:
    """Where the averaged network is not there yet, the method itself is what is loaded."""
    (tmp_path / "checkpoints").symlink_to(averaged / "r45/checkpoints")
    inner, expected = final_state(tmp_path), final_state(plain / "r45")
    assert inner is not None and same(inner, expected)


def test_export_writes_the_averaged_network(
    averaged: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "w.pt"
    cli.main(["export", str(averaged / "r45"), "--to", str(file)])
    assert "the weights of digits16_net, for load_state_dict(strict=True)" in (
        capsys.readouterr().out
    )
    network = build_model("digits16_net", 10).eval()
    network.load_state_dict(torch.load(file, weights_only=True), strict=True)
    x = torch.rand(5, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.equal(network(x), restore(averaged / "r45", CPU)[0].predict(x))


def started(**changes: Any) -> Recipe:
    """Runs that take the networks of others and leave them as they are."""
    recipe = short(swad=False, name="second", start=RECIPE, **changes)
    return recipe.changed(
        optim={"lr": 1e-30, "weight_decay": 0.0},
        train={"updates": 1},
    )


def test_runs_start_from_the_averaged_network_of_the_same_target(
    root: Path, averaged: Path
) -> None:
    folder = train_one(started(), "batchformer", 0, root=root / "True")
    for name in ANGLES:
        method: Any = restore(folder / name, CPU)[0]
        weights, start = dict(method.network.named_parameters()), trained_network(averaged / name)
        assert same(weights, {key: start[key] for key in weights}), name


def test_one_target_does_not_start_from_a_run_over_all(root: Path) -> None:
    recipe = started(target="r45").changed(name="third")
    with pytest.raises(ValueError, match=r"r0, r45, r75\. .* Set --data.target each"):
        train_one(recipe, "batchformer", 0, root=root / "True")


def test_a_start_without_one_of_its_parts_is_answered_with_the_command(
    root: Path, averaged: Path, tmp_path: Path
) -> None:
    shutil.copytree(averaged, tmp_path / RECIPE / "batchformer/seed0")
    shutil.rmtree(tmp_path / RECIPE / "batchformer/seed0/r45")
    words = f"batchformer train {RECIPE} --arm batchformer --seed 0 --runs {tmp_path}"
    with pytest.raises(FileNotFoundError, match=words):
        train_one(started(), "batchformer", 0, root=tmp_path)


def test_stopped_and_run_again_averages_as_if_unbroken(averaged: Path, tmp_path: Path) -> None:
    """What waits to join the average is in the checkpoint."""
    folder = tmp_path / RECIPE / "batchformer/seed0"
    shutil.copytree(averaged, folder)
    shutil.rmtree(folder / "r45/swad")
    for path in (folder, folder / "r45"):
        (path / "result.json").unlink()
    max((folder / "r45/checkpoints").glob("*.pt")).unlink()
    assert load_newest(folder / "r45/checkpoints") is not None
    train_one(short(), "batchformer", 0, root=tmp_path)
    assert metrics_of(folder) == metrics_of(averaged)
    assert metrics_of(folder / "r45") == metrics_of(averaged / "r45")
    assert same(state_of(folder / "r45"), state_of(averaged / "r45"))
