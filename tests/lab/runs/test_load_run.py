"""Which state of a run's folder is restored, and what is said where there is none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from batchformer.lab.config.arms import with_arm
from batchformer.lab.config.recipe import Recipe
from batchformer.lab.engine import checkpoint
from batchformer.lab.engine.method import Method
from batchformer.lab.recipes import find_recipe
from batchformer.lab.recipes.small import demo
from batchformer.lab.runs.build import build, load_task
from batchformer.lab.runs.folder import write_figures
from batchformer.lab.runs.load_run import restore
from batchformer.lab.runs.run import Run
from helpers.lab_runs import config_of, same, state_of

CPU = torch.device("cpu")
State = dict[str, Tensor]


def begun(folder: Path, recipe: Recipe | None = None, arm: str = "batchformer") -> Run:
    """A run of seed 1 whose folder says what is trained, and holds no checkpoint yet."""
    run = Run(recipe or demo(), arm, 1, folder, CPU)
    run.begin()
    return run


def weights(number: int, run: Run) -> State:
    """A state of its method unlike that of any other number."""
    state = build(run.trained, number, load_task(run.recipe.data, CPU)).state_dict()
    return {name: value.clone() for name, value in state.items()}


def keep(folder: Path, update: int, method: State, average: State | None = None) -> Path:
    return checkpoint.save(folder, update, {"method": method, "average": average})


def test_the_trained_method_predicts_as_it_was_saved(tmp_path: Path) -> None:
    run = begun(tmp_path)
    state = weights(5, run)
    keep(tmp_path / "checkpoints", 7, state)
    method, task, config = restore(tmp_path, CPU)
    assert same(dict(method.state_dict()), state) and not same(state, weights(1, run))
    assert not method.training and task.num_classes == 10
    assert config == config_of(tmp_path)
    x = torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    expected = build(with_arm(demo(), "batchformer"), 1, task)
    expected.load_state_dict(state)
    with torch.no_grad():
        assert torch.equal(method.predict(x), expected.eval().predict(x))


def test_classes_of_other_names_or_in_another_order_are_refused(tmp_path: Path) -> None:
    """Labels are numbers: scored on a renamed class, a good network would seem to be wrong."""
    run = begun(tmp_path)
    keep(tmp_path / "checkpoints", 7, weights(5, run))
    names = [str(digit) for digit in range(10)]
    write_figures(tmp_path / "figures.npz", {"classes": np.array(names)})
    restore(tmp_path, CPU)
    for others in (names[::-1], [*names, "ten"]):
        write_figures(tmp_path / "figures.npz", {"classes": np.array(others)})
        with pytest.raises(ValueError, match=r"other classes: number \d+ was '(9|ten)' and is"):
            restore(tmp_path, CPU)
    for damaged in (b"PK", b""):
        (tmp_path / "figures.npz").write_bytes(damaged)
        restore(tmp_path, CPU)


def test_the_mean_of_the_weights_comes_before_the_weights(tmp_path: Path) -> None:
    run = begun(tmp_path)
    state, mean = weights(2, run), weights(3, run)
    average = {f"module.{name}": value for name, value in mean.items()}
    keep(tmp_path / "checkpoints", 1, state, {**average, "n_averaged": torch.tensor(4)})
    assert same(state_of(tmp_path), mean)


def test_the_best_comes_before_the_last_and_swad_before_both(tmp_path: Path) -> None:
    recipe = find_recipe("rotated_digits_erm").changed(data={"target": "r0"}, hyper={"swad": True})
    run = begun(tmp_path, recipe)
    last, best, mean = (weights(number, run) for number in (2, 3, 4))
    keep(tmp_path / "checkpoints", 9, last)
    assert same(state_of(tmp_path), last)
    checkpoint.save(tmp_path / "best", 3, {"method": best})
    assert same(state_of(tmp_path), best)
    checkpoint.save(tmp_path / "swad", 9, {"method": mean})
    assert same(state_of(tmp_path), mean)


def test_what_an_evaluation_prepares_is_prepared_with_the_trained_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = begun(tmp_path)
    state, seen = weights(5, run), []

    def prepared(method: Method) -> None:
        seen.append((method.training, same(dict(method.state_dict()), state)))

    kind = type(build(run.trained, 1, run.task))
    monkeypatch.setattr(kind, "before_evaluation", prepared)
    keep(tmp_path / "checkpoints", 7, state)
    restore(tmp_path, CPU)
    assert seen == [(True, True)]


def test_a_folder_that_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"holds no config\.json\. Name .* one run"):
        restore(tmp_path, CPU)


def test_a_run_without_a_checkpoint(tmp_path: Path) -> None:
    begun(tmp_path)
    with pytest.raises(FileNotFoundError, match="holds no checkpoint to load") as error:
        restore(tmp_path, CPU)
    assert str(tmp_path) in str(error.value) and "--runs" in str(error.value)


def test_a_run_of_several_trainings_names_them(tmp_path: Path) -> None:
    begun(tmp_path)
    for part in ("sketch", "art"):
        (tmp_path / part).mkdir()
        (tmp_path / part / "config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"holds several trainings: art, sketch\. Name the folder"):
        restore(tmp_path, CPU)


def edited(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize("seed", [None, "1", 1.0, True])
def test_a_seed_is_a_whole_number(tmp_path: Path, seed: Any) -> None:
    run = begun(tmp_path)
    keep(tmp_path / "checkpoints", 1, weights(2, run))
    edited(tmp_path, seed=seed)
    with pytest.raises(ValueError, match=r"json holds no run of this version.*not a whole number"):
        restore(tmp_path, CPU)


def test_the_weights_of_another_network_are_refused_by_their_folder(tmp_path: Path) -> None:
    run = begun(tmp_path)
    state = weights(2, run)
    del state[next(iter(state))]
    keep(tmp_path / "checkpoints", 1, state)
    with pytest.raises(ValueError, match=r"is not of this training.*Missing key") as error:
        restore(tmp_path, CPU)
    assert str(tmp_path) in str(error.value)
