"""The schedules of CIFAR-LT, by worked numbers."""

from __future__ import annotations

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


def test_cutmix_changes_the_batches_alone() -> None:
    base, cut = cifar100_lt_balanced_softmax(), cifar100_lt_balanced_softmax_cutmix()
    assert (cut.hyper.cutmix, cut.hyper.mixup, cut.hyper.mix_prob) == (1.0, 0.0, 0.5)
    assert (cut.table, cut.paper) == (NOT_IN_THE_PAPER, {})
    for part in ("data", "model", "method", "module", "optim", "schedule", "train"):
        assert getattr(cut, part) == getattr(base, part)
