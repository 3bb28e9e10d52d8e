"""The epoch is chosen without the classes of the test."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from batchformer.recipes.chosen_epoch import chosen, combine, parts_of
from batchformer.recipes.generalized import cub_ce_gzsl
from batchformer.recipes.parts import parts_of as any_parts
from batchformer.recipes.run import Run


def run(folder: Path) -> Run:
    return Run(cub_ce_gzsl(), "baseline", 0, folder, torch.device("cpu"))


def finish(part: Run, scores: list[tuple[int, float]]) -> None:
    part.folder.mkdir(parents=True)
    records: list[dict[str, Any]] = [{"kind": "train", "epoch": 0, "step": 1, "loss": 2.0}]
    for epoch, hm in scores:
        values = {"hm": hm, "unseen": hm - 1, "seen": hm + 1}
        records.append({"kind": "eval", "epoch": epoch, "step": 4 * epoch, **values})
    lines = "\n".join(json.dumps(record) for record in records)
    (part.folder / "metrics.jsonl").write_text(lines + "\n")
    result = {"metrics": {}, "minutes": 1.5, "updates": 100, "selected": "last"}
    (part.folder / "result.json").write_text(json.dumps(result))


def test_two_trainings_of_which_one_never_sees_the_test(tmp_path: Path) -> None:
    one = run(tmp_path)
    choose, train = parts_of(one)
    assert any_parts(one) == (choose, train)
    assert (choose.folder, train.folder) == (tmp_path / "choose", tmp_path / "train")
    assert choose.recipe.data.unseen == "val" and train.recipe.data.unseen == "test"  # type: ignore[union-attr]
    assert any_parts(train) == (train,), "a part has no parts"


def test_the_result_is_that_of_the_chosen_epoch(tmp_path: Path) -> None:
    one = run(tmp_path)
    choose, train = parts_of(one)
    finish(choose, [(50, 40.0), (100, 44.0), (150, 44.0)])
    assert not combine(one, (choose, train)) and not one.finished
    finish(train, [(50, 50.0), (100, 52.0), (150, 60.0)])
    assert combine(one, (choose, train))
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["metrics"] == {"hm": 52.0, "unseen": 51.0, "seen": 53.0, "val": 44.0}
    assert next(iter(result["metrics"])) == "hm" and result["minutes"] == 3.0
    assert result["selected"] == "epoch 100, by classes of validation"
    kept = (tmp_path / "metrics.jsonl").read_text()
    assert kept == (train.folder / "metrics.jsonl").read_text()


def test_an_epoch_that_was_not_evaluated() -> None:
    def evaluated(epoch: int) -> list[dict[str, Any]]:
        return [{"kind": "eval", "epoch": epoch, "hm": 1.0}]

    with pytest.raises(ValueError, match=r"epoch 50 was best.*train.eval-epochs"):
        chosen(evaluated(50), evaluated(60))
