"""The schedules of CIFAR-LT, by worked numbers."""

from __future__ import annotations

import pytest

from batchformer.lab.config.recipe import NOT_IN_THE_PAPER
from batchformer.lab.data.sets.images import class_counts
from batchformer.lab.recipes.cifar_lt import (
    IMAGES,
    cifar100_lt_balanced_softmax,
    cifar100_lt_balanced_softmax_cutmix,
    cifar_lt_balanced_softmax,
)


def test_image_counts_follow_from_the_profile() -> None:
    for (name, ratio), images in IMAGES.items():
        classes, largest = (100, 500) if name == "cifar100" else (10, 5000)
        assert sum(class_counts(largest, classes, ratio)) == images


def test_the_released_schedule_is_591_epochs_of_21() -> None:
    recipe = cifar_lt_balanced_softmax("cifar100", 100.0, "released")
    assert recipe.train.updates == 591 * 21 and recipe.train.drop_last
    assert recipe.train.batch_size == 512 and recipe.train.epochs == 0
    schedule = recipe.schedule
    assert (schedule.kind, schedule.per, schedule.floor) == ("cosine", "epoch", 0)
    assert (schedule.warmup, schedule.warmup_from, schedule.ahead) == (37, 0.5, 1)
    other = cifar_lt_balanced_softmax("cifar100", 200.0, "released")
    assert other.train.updates == 685 * 18 and other.schedule.warmup == 43


@pytest.mark.parametrize(("ratio", "all_of_paper"), [(100.0, 51.7), (200.0, 47.5)])
def test_the_papers_schedule(ratio: float, all_of_paper: float) -> None:
    recipe = cifar_lt_balanced_softmax("cifar100", ratio)
    train, optim, schedule = recipe.train, recipe.optim, recipe.schedule
    assert (train.updates, train.batch_size, train.epochs) == (13_000, 512, 0)
    assert train.drop_last is False and recipe.start == ""
    assert (optim.name, optim.lr, optim.momentum) == ("sgd", 0.1, 0.9)
    assert (optim.weight_decay, optim.nesterov) == (5e-4, False)
    # From 0.05 to 0.1 in 800 updates, then to 0.
    assert (schedule.kind, schedule.per, schedule.ahead) == ("cosine", "update", 0)
    assert (schedule.warmup, schedule.warmup_from, schedule.floor) == (800, 0.5, 0)
    assert recipe.module.lr_factor == 0.1
    assert recipe.paper["batchformer"]["all"] == all_of_paper


def test_cutmix_changes_the_batches_alone() -> None:
    base, cut = cifar100_lt_balanced_softmax(), cifar100_lt_balanced_softmax_cutmix()
    assert (cut.hyper.cutmix, cut.hyper.mixup, cut.hyper.mix_prob) == (1.0, 0.0, 0.5)
    assert (cut.table, cut.paper) == (NOT_IN_THE_PAPER, {})
    for part in ("data", "model", "method", "module", "optim", "schedule", "train"):
        assert getattr(cut, part) == getattr(base, part)
