"""Two views of images, and scores of features."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from batchformer.lab.config.arms import with_arm
from batchformer.lab.config.data import ContrastConfig
from batchformer.lab.config.training import TrainConfig
from batchformer.lab.data.feeds import framing
from batchformer.lab.data.transforms import (
    IMAGENET,
    ColorJitter,
    Compose,
    GaussianBlur,
    RandomFlip,
    RandomGrey,
    RandomResizedCrop,
    RandomSolarize,
    cifar_test,
    digits_train,
)
from batchformer.lab.engine.optimizer_step import OptimizerStep
from batchformer.lab.recipes import find_recipe
from batchformer.lab.runs.build import build
from batchformer.lab.tasks.base import load
from batchformer.lab.tasks.contrastive import ContrastiveTask
from batchformer.lab.tasks.features import views

GREY, FLIP = RandomGrey(0.2), RandomFlip(0.5)
MOCO_JITTER, BYOL_JITTER = (ColorJitter(0.4, 0.4, s, 0.1, p=0.8) for s in (0.4, 0.2))
SOLARISED = RandomSolarize(128, p=0.2)


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
@pytest.mark.parametrize(
    ("kind", "first", "second"),
    [
        ("moco_v2", (MOCO_JITTER, GREY, FLIP), (MOCO_JITTER, GREY, FLIP)),
        ("byol", (BYOL_JITTER, GREY, FLIP), (BYOL_JITTER, GREY, SOLARISED, FLIP)),
    ],
)
def test_views_of_cifar_are_not_blurred(name: Any, kind: Any, first: Any, second: Any) -> None:
    crop, end = RandomResizedCrop(32, scale=(0.2, 1.0)), cifar_test()
    found = views(ContrastConfig(name=name, views=kind), files=False)
    assert found == (Compose((crop, *first, end)), Compose((crop, *second, end)))


@pytest.mark.parametrize("kind", ["moco_v2", "byol"])
def test_digits_are_shifted(kind: Any) -> None:
    found = views(ContrastConfig(name="digits", views=kind), files=False)
    assert found == (digits_train(), digits_train())


@pytest.mark.parametrize("name", ["imagenet", "imagenet_lt", "folder"])
def test_views_of_image_files(name: Any) -> None:
    crop = framing.RandomResizedCrop(28, scale=(0.2, 1.0))
    one = Compose((MOCO_JITTER, GREY, GaussianBlur((0.1, 2.0), p=0.5), FLIP, IMAGENET))
    config = ContrastConfig(name=name, size=28, views="moco_v2")
    assert views(config, files=True) == ((crop, one), (crop, one))
    first = Compose((BYOL_JITTER, GREY, GaussianBlur((0.1, 2.0), p=1.0), FLIP, IMAGENET))
    rarely = GaussianBlur((0.1, 2.0), p=0.1)
    second = Compose((BYOL_JITTER, GREY, rarely, SOLARISED, FLIP, IMAGENET))
    config = ContrastConfig(name=name, size=28, views="byol")
    assert views(config, files=True) == ((crop, first), (crop, second))


CPU = torch.device("cpu")
OPTIMIZER_STEP = OptimizerStep(TrainConfig(workers=0), CPU)
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
