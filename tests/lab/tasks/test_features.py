"""The bank of training features, the two views, and scores of features."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
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
from batchformer.lab.tasks.features import Bank, contrasted_file_views, views


def bank_of(counts: list[int], seed: int = 0) -> Bank:
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    images = torch.arange(len(labels))[:, None].float()
    batches = [*zip(torch.split(images, 7), torch.split(labels, 7), strict=True)]
    return Bank(labels, seed, lambda: batches)


@settings(max_examples=30, deadline=None)
@given(counts=st.lists(st.integers(1, 40), min_size=2, max_size=6), seed=st.integers(0, 5))
def test_classes_of_a_long_tail_are_equally_often_there(counts: list[int], seed: int) -> None:
    features, labels = bank_of(counts, seed)(lambda x: x)
    rows = features[:, 0].long()
    assert len(rows) == sum(counts)
    assert torch.equal(bank_of(counts).labels[rows], labels)
    if max(counts) < 2 * min(counts):
        assert rows.tolist() == list(range(sum(counts))), "balanced: every image once, in order"
    else:
        found = labels.bincount(minlength=len(counts))
        assert found.max() - found.min() <= 1
        for label, count in enumerate(counts):
            often = rows[labels == label].bincount()
            often = often[often > 0]
            assert len(often) == min(count, int(found[label])) and often.max() - often.min() <= 1


def test_the_seed_draws_and_an_image_is_encoded_once() -> None:
    seen: list[int] = []

    def extract(x: torch.Tensor) -> torch.Tensor:
        seen.extend(x[:, 0].long().tolist())
        return x

    counts = [60, 20, 2]
    first, _ = bank_of(counts, 0)(extract)
    assert seen == list(range(82))
    again, _ = bank_of(counts, 0)(lambda x: x)
    other, _ = bank_of(counts, 1)(lambda x: x)
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_classes_without_images_are_left_out() -> None:
    labels = torch.tensor([0, 0, 0, 0, 2])
    bank = Bank(labels, 0, lambda: [(torch.zeros(5, 1), labels)])
    _, found = bank(lambda x: x)
    assert sorted(found.bincount(minlength=3).tolist()) == [0, 2, 3]


def test_half_precision_arrives_in_single() -> None:
    features, _ = bank_of([2, 2])(lambda x: x.half())
    assert features.dtype == torch.float32


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
    found = views(ContrastConfig(name=name, views=kind))
    assert found == (Compose((crop, *first, end)), Compose((crop, *second, end)))


@pytest.mark.parametrize("kind", ["moco_v2", "byol"])
def test_digits_are_shifted(kind: Any) -> None:
    assert views(ContrastConfig(name="digits", views=kind)) == (digits_train(), digits_train())


@pytest.mark.parametrize("name", ["imagenet", "imagenet_lt", "folder"])
def test_views_of_image_files(name: Any) -> None:
    crop = framing.RandomResizedCrop(28, scale=(0.2, 1.0))
    one = Compose((MOCO_JITTER, GREY, GaussianBlur((0.1, 2.0), p=0.5), FLIP, IMAGENET))
    config = ContrastConfig(name=name, size=28, views="moco_v2")
    assert contrasted_file_views(config) == ((crop, one), (crop, one))
    first = Compose((BYOL_JITTER, GREY, GaussianBlur((0.1, 2.0), p=1.0), FLIP, IMAGENET))
    rarely = GaussianBlur((0.1, 2.0), p=0.1)
    second = Compose((BYOL_JITTER, GREY, rarely, SOLARISED, FLIP, IMAGENET))
    config = ContrastConfig(name=name, size=28, views="byol")
    assert contrasted_file_views(config) == ((crop, first), (crop, second))


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
