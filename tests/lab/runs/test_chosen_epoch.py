"""The epoch is chosen without the classes of the test."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from batchformer.lab.config.training import ScheduleConfig
from batchformer.lab.recipes.zero_shot import cub_ce_gzsl
from batchformer.lab.runs.run import Run
from batchformer.lab.runs.sub_runs import combine_epochs, epoch_parts
from batchformer.lab.runs.sub_runs import parts_of as any_parts


def run(folder: Path) -> Run:
    return Run(cub_ce_gzsl(), "baseline", 0, folder, torch.device("cpu"))


def finish(part: Run, scores: list[tuple[int, float]]) -> None:
    part.folder.mkdir(parents=True)
    records: list[dict[str, Any]] = [{"kind": "train", "epoch": 0, "step": 1, "loss": 2.0}]
    metrics, hm = {}, 0.0
    for epoch, hm in scores:
        metrics = {"hm": hm, "unseen": hm - 1, "seen": hm + 1}
        records.append({"kind": "eval", "epoch": epoch, "step": 4 * epoch, **metrics})
    lines = "\n".join(json.dumps(record) for record in records)
    (part.folder / "metrics.jsonl").write_text(lines + "\n")
    curve = {"bias_seen": np.array([hm, 0.0]), "bias_of": np.array("classes")}
    np.savez(part.folder / "figures.npz", correct=np.ones(3, bool), **curve)
    result = {"metrics": metrics, "minutes": 1.5, "updates": 100, "selected": "last"}
    (part.folder / "result.json").write_text(json.dumps(result))


def test_one_training_never_sees_the_test_and_the_other_waits_for_it(tmp_path: Path) -> None:
    one = run(tmp_path)
    (choose,) = epoch_parts(one)
    assert any_parts(one) == (choose,)
    finish(choose, [(50, 40.0), (100, 44.0), (150, 44.0)])
    choose, train = epoch_parts(one)
    assert any_parts(one) == (choose, train)
    assert (choose.folder, train.folder) == (tmp_path / "choose", tmp_path / "train")
    assert choose.recipe.data.unseen == "val" and train.recipe.data.unseen == "test"  # type: ignore[union-attr]
    assert any_parts(train) == (train,), "a part has no parts"
    assert (train.recipe.train.epochs, train.recipe.train.eval_epochs) == (100, 100)
    assert choose.recipe.train == one.recipe.train


def test_the_result_is_that_of_the_chosen_epoch(tmp_path: Path) -> None:
    one = run(tmp_path)
    finish(epoch_parts(one)[0], [(50, 40.0), (100, 44.0), (150, 44.0)])
    choose, train = epoch_parts(one)
    assert not combine_epochs(one, (choose, train)) and not one.finished
    finish(train, [(100, 52.0)])
    assert combine_epochs(one, (choose, train))
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["metrics"] == {"hm": 52.0, "unseen": 51.0, "seen": 53.0, "val": 44.0}
    assert next(iter(result["metrics"])) == "hm" and result["minutes"] == 3.0
    assert result["selected"] == "epoch 100, by classes of validation"
    with np.load(tmp_path / "figures.npz") as arrays:
        assert arrays["chosen_epoch"] == 100 and arrays["choice_epochs"].tolist() == [50, 100, 150]
        assert arrays["choice_hm"].tolist() == [40.0, 44.0, 44.0]
        assert arrays["bias_seen"].tolist() == [52.0, 0.0], "the curve is that of the test"
        assert str(arrays["bias_of"]) == "classes" and "correct" not in arrays
    kept = (tmp_path / "metrics.jsonl").read_text()
    assert kept == (train.folder / "metrics.jsonl").read_text()


def test_a_schedule_that_depends_on_the_length_is_refused() -> None:
    recipe = cub_ce_gzsl()
    with pytest.raises(ValueError, match=r"leave data\.choose off"):
        dataclasses.replace(recipe, schedule=ScheduleConfig(kind="cosine"))
