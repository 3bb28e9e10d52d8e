"""Which trainings a run consists of, and what becomes of them, for each kind of run."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from batchformer.lab.config.arms import ARMS
from batchformer.lab.config.recipe import Recipe
from batchformer.lab.recipes import find_recipe
from batchformer.lab.recipes.small import demo
from batchformer.lab.recipes.zero_shot import cub_ce_gzsl
from batchformer.lab.runs import sub_runs as chosen_epoch
from batchformer.lab.runs import sub_runs as parts
from batchformer.lab.runs import sub_runs as targets
from batchformer.lab.runs.run import Run
from batchformer.lab.runs.sub_runs import combine, parts_of

pytestmark = pytest.mark.usefixtures("three_angles")

ANGLES = ("r0", "r45", "r75")


def of(recipe: Recipe, folder: Path, **data: Any) -> Run:
    recipe = dataclasses.replace(recipe, data=recipe.data_with(**data)) if data else recipe
    return Run(recipe, "batchformer", 2, folder, torch.device("cpu"))


def finish(part: Run, metrics: dict[str, float], evaluated: list[dict[str, Any]]) -> None:
    """Write by hand what a training leaves."""
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
    )
    result = {"metrics": metrics, "minutes": 0.5, "updates": 10, "selected": "last"}
    (part.folder / "result.json").write_text(json.dumps(result))


def written(run: Run) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run.folder / "result.json").read_text())
    return found


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
        return dataclasses.replace(recipe, data=recipe.data_with(target="r45"))

    monkeypatch.setitem(ARMS, "one_target", (one_target, "one domain is left out"))
    run = of(find_recipe("rotated_digits_erm"), tmp_path)
    assert tuple(part.part for part in parts_of(run)) == ANGLES
    alone = dataclasses.replace(run, arm="one_target")
    assert parts_of(alone) == (alone,)


def test_every_target_is_left_out_once(tmp_path: Path) -> None:
    run = of(find_recipe("rotated_digits_erm"), tmp_path)
    found = parts_of(run)
    assert [part.part for part in found] == list(ANGLES)
    for part in found:
        assert part.folder == tmp_path / part.part
        assert part.recipe.data == run.recipe.data_with(target=part.part)
        assert (part.arm, part.seed) == ("batchformer", 2)
        assert parts_of(part) == (part,), "a part has no parts"


def test_the_epoch_is_chosen_first_and_the_rest_waits_for_it(tmp_path: Path) -> None:
    run = of(cub_ce_gzsl(), tmp_path)
    (first,) = parts_of(run)
    assert first.folder == tmp_path / "choose"
    assert first.recipe.data == run.recipe.data_with(choose=False, unseen="val")
    scores = [{"epoch": e, "step": e, "hm": hm} for e, hm in ((1, 20.0), (2, 30.0), (3, 25.0))]
    finish(first, {"hm": 25.0}, scores)
    again, second = parts_of(run)
    assert again == first and second.folder == tmp_path / "train"
    assert second.recipe.data == run.recipe.data_with(choose=False)
    assert second.recipe.train.epochs == 2, "where the first was best"
    assert parts_of(first) == (first,) and parts_of(second) == (second,)


def test_targets_are_combined_when_the_last_has_finished(tmp_path: Path) -> None:
    run = of(find_recipe("rotated_digits_erm"), tmp_path)
    scores = dict(zip(ANGLES, (90.0, 60.0, 30.0), strict=True))
    for part in parts_of(run):
        assert not combine(run) and not run.finished
        name = part.part
        metrics = {name: scores[name], "val": scores[name] + 5}
        finish(part, metrics, [{"epoch": 0, "step": 10, **metrics}])
    assert combine(run) and run.finished
    assert written(run) == {
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


def test_a_chosen_epoch_is_combined_when_both_have_finished(tmp_path: Path) -> None:
    run = of(cub_ce_gzsl(), tmp_path)
    assert not combine(run)
    scores = [{"epoch": e, "step": e, "hm": hm} for e, hm in ((1, 20.0), (2, 30.0))]
    finish(parts_of(run)[0], {"hm": 30.0}, scores)
    assert not combine(run) and not run.finished
    finish(parts_of(run)[1], {"hm": 44.0}, [{"epoch": 2, "step": 2, "hm": 44.0}])
    assert combine(run)
    assert written(run)["metrics"] == {"hm": 44.0, "val": 30.0}
    assert written(run)["selected"] == "epoch 2, by classes of validation"


def test_features_that_are_trained_on_once_have_nothing_to_combine(tmp_path: Path) -> None:
    run = of(cub_ce_gzsl(), tmp_path / "run", choose=False)
    finish(run, {"hm": 44.0}, [{"epoch": 2, "step": 2, "hm": 44.0}])
    before = {path: path.read_bytes() for path in run.folder.iterdir()}
    assert not combine(run)
    assert {path: path.read_bytes() for path in run.folder.iterdir()} == before


@pytest.mark.parametrize(
    ("kind", "module"), [("rotated_digits_erm", targets), ("cub_ce_gzsl", chosen_epoch)]
)
def test_an_interrupted_write_is_not_a_result_and_is_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, module: Any
) -> None:
    run = of(find_recipe(kind), tmp_path)
    for _ in range(2):  # the second training of a chosen epoch waits for the first
        for part in [part for part in parts_of(run) if not part.finished]:
            metrics = {"hm": 30.0, part.part: 50.0}
            finish(part, metrics, [{"epoch": 1, "step": 1, **metrics}])

    def fails(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    for name in ("write_atomically", "write_figures", "write_result"):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, fails)
            with pytest.raises(OSError, match="No space left"):
                combine(run)
        assert not run.finished, f"{name} failed"
    assert combine(run) and run.finished


def test_the_first_rank_combines_and_the_others_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = of(find_recipe("rotated_digits_erm"), tmp_path)
    for part in parts_of(run):
        finish(part, {part.part: 50.0}, [{"epoch": 0, "step": 1, part.part: 50.0}])
    monkeypatch.setattr(parts, "on_rank_zero", lambda make: "told by the first")
    assert combine(run) == "told by the first"  # type: ignore[comparison-overlap]
    assert not (tmp_path / "result.json").exists(), "another rank writes nothing"
