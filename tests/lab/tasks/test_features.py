"""Scores of features, of learning without labels and of its neighbours."""

from __future__ import annotations

import dataclasses
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from batchformer.lab.config.arms import with_arm
from batchformer.lab.config.training import TrainConfig
from batchformer.lab.engine.optimizer_step import OptimizerStep
from batchformer.lab.recipes import find_recipe
from batchformer.lab.runs.build import build
from batchformer.lab.tasks.base import load
from batchformer.lab.tasks.contrastive import ContrastiveTask
from helpers.data_files import save_noise

CPU = torch.device("cpu")
OPTIMIZER_STEP = OptimizerStep(TrainConfig(workers=0), CPU)
NAMES = ("alignment", "uniformity", "feature_std")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("noise")
    draw = np.random.default_rng(0)
    for part, label, i in product(("train", "test"), range(2), range(4)):
        save_noise(folder / part / str(label) / f"{i}.png", draw)
    return folder


@pytest.mark.parametrize("name", ["digits_moco_v3", "my_folder_moco_v3"])
def test_neighbours_report_what_the_training_reports(name: str, root: Path) -> None:
    learnt = find_recipe(name)
    compared = find_recipe("my_folder_knn" if "folder" in name else "digits_moco_v3_knn")
    if "folder" in name:
        changes: dict[str, Any] = {"root": str(root), "size": 32}
        small: dict[str, Any] = {"model": "test_resnet"}
        small["hyper"] = dataclasses.replace(learnt.hyper, projection_hidden=16, dim=4)
        learnt = learnt.changed(data=changes, **small)
        compared = compared.changed(data=changes, model=small["model"])
    task = ContrastiveTask.load(learnt.data, CPU)  # type: ignore[arg-type]
    method: Any = build(with_arm(learnt, "baseline"), 0, task).eval()
    other_task = load(compared.data, CPU)
    other: Any = build(with_arm(compared, "random_weights"), 3, other_task).eval()
    other.network.load_state_dict(method.network.state_dict())
    with torch.no_grad():
        wanted = task.evaluate(method, OPTIMIZER_STEP).metrics
        found = other_task.evaluate(other, OPTIMIZER_STEP).metrics
    assert next(iter(found)) == "all", "the headline stays"
    assert [found[key] for key in NAMES] == pytest.approx([wanted[key] for key in NAMES], rel=1e-5)
    assert all(abs(found[key]) > 1e-3 for key in NAMES)


def test_other_methods_are_not_asked() -> None:
    recipe = find_recipe("digits_moco_v3_probe")
    with pytest.raises(ValueError, match=r"data\.views byol is for the method knn"):
        recipe.changed(data={"views": "byol"})
