"""What features look like is the same number for what learns them and for what compares them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from batchformer.lab.config.arms import with_arm
from batchformer.lab.config.training import TrainConfig
from batchformer.lab.engine.optimizer_step import OptimizerStep
from batchformer.lab.recipes import find_recipe
from batchformer.lab.runs.build import build
from batchformer.lab.tasks.contrastive import ContrastiveTask
from batchformer.lab.tasks.load import load

CPU = torch.device("cpu")
MECHANICS = OptimizerStep(TrainConfig(workers=0), CPU)
NAMES = ("alignment", "uniformity", "feature_std")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("noise")
    draw = np.random.default_rng(0)
    for part in ("train", "test"):
        for label in range(2):
            (folder / part / str(label)).mkdir(parents=True)
            for i in range(4):
                pixels = draw.integers(0, 256, (40, 36, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / part / str(label) / f"{i}.png")
    return folder


@pytest.mark.parametrize("name", ["digits_moco_v3", "my_folder_moco_v3"])
def test_neighbours_report_what_the_training_reports(name: str, root: Path) -> None:
    learnt = find_recipe(name)
    compared = find_recipe("my_folder_knn" if "folder" in name else "digits_moco_v3_knn")
    if "folder" in name:
        changes: dict[str, Any] = {"root": str(root), "size": 32}
        small: dict[str, Any] = {"model": "resnet18_small"}
        small["hyper"] = dataclasses.replace(learnt.hyper, projection_hidden=16, dim=4)
        learnt = dataclasses.replace(learnt, data=learnt.data_with(**changes), **small)
        compared = dataclasses.replace(
            compared, data=compared.data_with(**changes), model=small["model"]
        )
    task = ContrastiveTask.load(learnt.data, CPU)  # type: ignore[arg-type]
    method: Any = build(with_arm(learnt, "baseline"), 0, task).eval()
    other_task = load(compared.data, CPU)
    other: Any = build(with_arm(compared, "random_weights"), 3, other_task).eval()
    other.network.load_state_dict(method.network.state_dict())
    with torch.no_grad():
        wanted = task.evaluate(method, MECHANICS).metrics
        found = other_task.evaluate(other, MECHANICS).metrics
    assert next(iter(found)) == "all", "the headline stays"
    assert [found[key] for key in NAMES] == pytest.approx([wanted[key] for key in NAMES], rel=1e-5)
    assert all(abs(found[key]) > 1e-3 for key in NAMES)


def test_other_methods_are_not_asked() -> None:
    recipe = find_recipe("digits_moco_v3_probe")
    with pytest.raises(ValueError, match=r"data\.views is for the method knn"):
        dataclasses.replace(recipe, data=recipe.data_with(views="byol"))
