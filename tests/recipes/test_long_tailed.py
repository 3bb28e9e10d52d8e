"""The schedules of CIFAR-LT, by worked numbers."""

from __future__ import annotations

from batchformer.data.long_tail import class_counts
from batchformer.recipes.long_tailed import IMAGES, cifar_lt_balanced_softmax


def test_image_counts_follow_from_the_profile() -> None:
    for (name, ratio), images in IMAGES.items():
        classes, largest = (100, 500) if name == "cifar100" else (10, 5000)
        assert sum(class_counts(largest, classes, ratio)) == images


def test_the_released_schedule_is_591_epochs_of_21() -> None:
    recipe = cifar_lt_balanced_softmax("cifar100", 100.0, "released")
    assert recipe.train.updates == 591 * 21 and recipe.train.drop_last
    assert recipe.schedule.warmup == 37 and recipe.schedule.per == "epoch"
    other = cifar_lt_balanced_softmax("cifar100", 200.0, "released")
    assert other.train.updates == 685 * 18 and other.schedule.warmup == 43


def test_the_papers_schedule() -> None:
    recipe = cifar_lt_balanced_softmax("cifar100", 100.0)
    assert (recipe.train.updates, recipe.train.batch_size) == (13_000, 512)
    assert recipe.optim.lr == 0.1 and recipe.optim.weight_decay == 5e-4
    assert recipe.module.lr_factor == 0.1
    assert recipe.paper["batchformer"]["all"] == 51.7
