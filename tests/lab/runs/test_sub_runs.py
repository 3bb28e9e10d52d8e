"""Which trainings a run consists of, and what becomes of them; their results are made by hand."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from batchformer.lab.config.arms import ARMS, Arm
from batchformer.lab.config.recipe import Recipe
from batchformer.lab.recipes import find_recipe
from batchformer.lab.recipes.small import demo
from batchformer.lab.recipes.zero_shot import cub_ce_gzsl
from batchformer.lab.runs import sub_runs
from batchformer.lab.runs.run import Run
from batchformer.lab.runs.sub_runs import (
    combine,
    joined_figures,
    mean_records,
    mean_scores,
    parts_of,
    targets_of,
)
from helpers.lab_runs import result_of

pytestmark = pytest.mark.usefixtures("three_angles")

ANGLES = ("r0", "r45", "r75")


def of(recipe: Recipe, folder: Path, **data: Any) -> Run:
    recipe = recipe.changed(data=data) if data else recipe
    return Run(recipe, "batchformer", 2, folder, torch.device("cpu"))


def finish(part: Run, metrics: dict[str, float], evaluated: list[dict[str, Any]]) -> None:
    """Write what a training leaves."""
    part.folder.mkdir(parents=True)
    lines = [json.dumps({"kind": "eval", **record}) + "\n" for record in evaluated]
    (part.folder / "metrics.jsonl").write_text("".join(lines))
    np.savez(
        part.folder / "figures.npz",
        per_class=np.array([metrics.get(part.part, 0.0), np.nan]),
        train_counts=np.array([9, 4]),
        correct=np.array([True, False]),
        classes=np.array(["a", "b"]),
        confusion=np.eye(2),
        bias_seen=np.array([metrics.get("hm", 0.0), 0.0]),
    )
    result = {"metrics": metrics, "minutes": 0.5, "updates": 10, "selected": "last"}
    (part.folder / "result.json").write_text(json.dumps(result))


def test_most_runs_are_their_own_training(tmp_path: Path) -> None:
    for run in (
        of(demo(), tmp_path),
        of(find_recipe("rotated_digits_erm"), tmp_path, target="r45"),
        of(cub_ce_gzsl(), tmp_path, choose=False),
        of(cub_ce_gzsl(), tmp_path, choose=False, unseen="val"),
    ):
        assert parts_of(run) == (run,)


def test_the_data_of_the_arm_decide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def one_target(recipe: Recipe) -> Recipe:
        return recipe.changed(data={"target": "r45"})

    monkeypatch.setitem(ARMS, "one_target", Arm(one_target, "one domain is left out", "#555555"))
    run = of(find_recipe("rotated_digits_erm"), tmp_path)
    assert tuple(part.part for part in parts_of(run)) == ANGLES
    alone = dataclasses.replace(run, arm="one_target")
    assert parts_of(alone) == (alone,)


# Every domain left out once


def test_every_target_is_left_out_once(tmp_path: Path) -> None:
    recipe = find_recipe("rotated_digits_erm").changed(start="other/baseline")
    run = of(recipe, tmp_path / "rotated_digits_erm/batchformer/seed2")
    found = parts_of(run)
    assert [part.part for part in found] == list(ANGLES) == list(targets_of(recipe))
    assert run.sources == {"start": tmp_path / "other/baseline/seed2"}
    for part in found:
        assert part.folder == run.folder / part.part
        assert part.title == f"rotated_digits_erm batchformer seed 2 {part.part}"
        assert part.recipe == recipe.changed(data={"target": part.part})
        assert (part.arm, part.seed) == ("batchformer", 2)
        assert part.sources == {"start": tmp_path / f"other/baseline/seed2/{part.part}"}
        assert parts_of(part) == (part,), "a part has no parts"


def test_targets_are_combined_when_the_last_has_finished(tmp_path: Path) -> None:
    run = of(find_recipe("rotated_digits_erm"), tmp_path)
    scores = dict(zip(ANGLES, (90.0, 60.0, 30.0), strict=True))
    for part in parts_of(run):
        assert not combine(run) and not run.finished
        name = part.part
        metrics = {name: scores[name], "val": scores[name] + 5}
        finish(part, metrics, [{"epoch": 0, "step": 10, **metrics}])
    assert combine(run) and run.finished
    assert result_of(run.folder) == {
        "metrics": {"average": 60.0, **scores, "val": 65.0},
        "minutes": 1.5,
        "updates": 30,
        "selected": "last",
    }
    (line,) = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert json.loads(line)["average"] == 60.0
    with np.load(tmp_path / "figures.npz") as arrays:
        assert arrays["per_class"].tolist() == [60.0, pytest.approx(np.nan, nan_ok=True)]
        assert arrays["correct"].tolist() == [True, False] * 3


def test_a_damaged_part_is_named_with_what_to_do(tmp_path: Path) -> None:
    run = of(find_recipe("rotated_digits_erm"), tmp_path)
    for part in parts_of(run):
        finish(part, {part.part: 50.0}, [{"epoch": 0, "step": 1, part.part: 50.0}])
    path = tmp_path / "r45/figures.npz"
    content = path.read_bytes()
    middle = len(content) // 3
    changed = content[:middle] + bytes(40) + content[middle + 40 :]
    for damaged in (b"", b"text\n", content[:100], changed, None):
        path.unlink() if damaged is None else path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"r45/figures\.npz is damaged.*r45/result\.json, and"):
            combine(run)


def test_a_score_that_a_part_could_not_measure_is_null_in_the_mean(tmp_path: Path) -> None:
    run = of(find_recipe("rotated_digits_erm"), tmp_path)
    for part in parts_of(run):
        finish(part, {part.part: 50.0}, [{"epoch": 0, "step": 1, part.part: 50.0}])
    path = tmp_path / "r45/result.json"
    path.write_text(path.read_text().replace("50.0", "null"))
    assert combine(run)
    assert result_of(run.folder)["metrics"] == {
        "average": None,
        "r0": 50.0,
        "r45": None,
        "r75": 50.0,
    }


def test_mean_scores_with_swad_by_hand() -> None:
    scores = {
        "a": {"a": 84.0, "val": 95.0, "without_swad_a": 80.0, "without_swad_val": 90.0},
        "b": {"b": 70.0, "val": 96.0, "without_swad_b": 60.0, "without_swad_val": 92.0},
    }
    assert list(mean_scores(scores).items()) == [
        ("average", 77.0),
        ("a", 84.0),
        ("b", 70.0),
        ("without_swad", 70.0),
        ("without_swad_a", 80.0),
        ("without_swad_b", 60.0),
        ("val", 95.5),
        ("without_swad_val", 91.0),
    ]


def test_mean_records_by_hand() -> None:
    records = {
        "a": [
            {"kind": "train", "epoch": 0, "step": 2, "loss": 1.0, "lr": 0.1, "own": 3.0},
            {"kind": "eval", "epoch": 1, "step": 2, "a": 40.0, "val": 10.0, "val_loss": 2.0},
            {"kind": "train", "epoch": 1, "step": 3, "loss": 5.0, "lr": 0.1},
            {"kind": "swad", "epoch": 1, "step": 2, "updates": 3},
        ],
        "b": [
            {"kind": "train", "epoch": 0, "step": 2, "loss": 2.0, "lr": 0.1},
            {"kind": "eval", "epoch": 2, "step": 2, "b": 60.0, "val": 30.0, "val_loss": 4.0},
            {"kind": "swad", "epoch": 1, "step": 2, "updates": 5},
        ],
    }
    evaluation, training = mean_records(records)
    assert training == {"kind": "train", "step": 2, "epoch": 0.0, "loss": 1.5, "lr": 0.1}
    assert evaluation == {
        "kind": "eval",
        "step": 2,
        "average": 50.0,
        "a": 40.0,
        "b": 60.0,
        "val": 20.0,
        "epoch": 1.5,
        "val_loss": 3.0,
    }
    assert list(evaluation)[2] == "average"


def test_joined_figures_by_hand(tmp_path: Path) -> None:
    nan = math.nan
    parts = (
        ([50.0, nan, nan], [4, 5, 6], [True, False], [[1, 1, 0], [0, 0, 0], [0, 0, 0]]),
        ([100.0, 20.0, nan], [5, 5, 7], [True], [[1, 0, 0], [0, 2, 8], [0, 0, 0]]),
    )
    for name, (per_class, counts, correct, confusion) in zip("ab", parts, strict=True):
        (tmp_path / name).mkdir()
        np.savez(
            tmp_path / name / "figures.npz",
            per_class=per_class,
            train_counts=counts,
            correct=correct,
            classes=["x", "y", "z"],
            confusion=np.array(confusion, dtype=np.int32),
        )
    found = joined_figures([tmp_path / "a", tmp_path / "b"])
    np.testing.assert_array_equal(found["per_class"], [75.0, 20.0, nan])
    assert found["train_counts"].tolist() == [4, 5, 6]  # 4.5 and 6.5 go to the even neighbour
    assert found["correct"].tolist() == [True, False, True]
    assert found["classes"].tolist() == ["x", "y", "z"]
    assert found["confusion"].tolist() == [[2, 1, 0], [0, 2, 8], [0, 0, 0]]


# An epoch chosen on validation classes


def test_the_second_training_has_the_length_that_was_best_in_the_first(tmp_path: Path) -> None:
    run = of(cub_ce_gzsl(), tmp_path)
    (choose,) = parts_of(run)
    assert choose.recipe == run.recipe.changed(data={"choose": False, "unseen": "val"})
    assert choose.recipe.train == run.recipe.train and not combine(run)
    scores = ((50, 40.0), (100, 44.0), (150, 44.0))
    finish(choose, {"hm": 44.0}, [{"epoch": e, "step": 4 * e, "hm": hm} for e, hm in scores])
    again, train = parts_of(run)
    assert again == choose and not combine(run) and not run.finished
    assert (choose.folder, train.folder) == (tmp_path / "choose", tmp_path / "train")
    assert train.recipe.data == run.recipe.changed(data={"choose": False}).data
    assert (train.recipe.train.epochs, train.recipe.train.eval_epochs) == (100, 100)
    assert parts_of(choose) == (choose,) and parts_of(train) == (train,), "a part has no parts"

    finish(train, {"hm": 52.0, "seen": 53.0}, [{"epoch": 100, "step": 400, "hm": 52.0}])
    assert combine(run)
    assert result_of(run.folder) == {
        "metrics": {"hm": 52.0, "seen": 53.0, "val": 44.0},
        "minutes": 1.0,
        "updates": 20,
        "selected": "epoch 100, by classes of validation",
    }
    with np.load(tmp_path / "figures.npz") as arrays:
        assert arrays["chosen_epoch"] == 100 and arrays["choice_epochs"].tolist() == [50, 100, 150]
        assert arrays["choice_hm"].tolist() == [40.0, 44.0, 44.0]
        assert arrays["bias_seen"].tolist() == [52.0, 0.0], "the curve is that of the test"
        assert "correct" not in arrays
    kept = (tmp_path / "metrics.jsonl").read_text()
    assert kept == (train.folder / "metrics.jsonl").read_text()


def test_features_that_are_trained_on_once_have_nothing_to_combine(tmp_path: Path) -> None:
    run = of(cub_ce_gzsl(), tmp_path / "run", choose=False)
    finish(run, {"hm": 44.0}, [{"epoch": 2, "step": 2, "hm": 44.0}])
    before = {path: path.read_bytes() for path in run.folder.iterdir()}
    assert not combine(run)
    assert {path: path.read_bytes() for path in run.folder.iterdir()} == before


# Both


@pytest.mark.parametrize("kind", ["rotated_digits_erm", "cub_ce_gzsl"])
def test_an_interrupted_write_is_not_a_result_and_is_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    run = of(find_recipe(kind), tmp_path)
    for _ in range(2):  # the second training of a chosen epoch waits for the first
        for part in [part for part in parts_of(run) if not part.finished]:
            metrics = {"hm": 30.0, part.part: 50.0}
            finish(part, metrics, [{"epoch": 1, "step": 1, **metrics}])

    def fails(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    for name in ("write_records", "write_figures", "write_result"):
        with monkeypatch.context() as patch:
            patch.setattr(sub_runs, name, fails)
            with pytest.raises(OSError, match="No space left"):
                combine(run)
        assert not run.finished, f"{name} failed"
    assert combine(run) and run.finished


def test_rank_zero_combines_and_tells_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = of(find_recipe("rotated_digits_erm"), tmp_path)
    for part in parts_of(run):
        finish(part, {part.part: 50.0}, [{"epoch": 0, "step": 1, part.part: 50.0}])
    monkeypatch.setattr(sub_runs, "on_rank_zero", lambda make: "told by rank 0")
    assert combine(run) == "told by rank 0"  # type: ignore[comparison-overlap]
    assert not (tmp_path / "result.json").exists(), "another rank writes nothing"
