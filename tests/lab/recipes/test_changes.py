"""Changes of a recipe: one thing, and what follows from it."""

from __future__ import annotations

import dataclasses
import math

import pytest

from batchformer.lab.config.comparable import changed_settings
from batchformer.lab.config.recipe import Recipe
from batchformer.lab.config.training import ScheduleConfig
from batchformer.lab.recipes import find_recipe
from batchformer.lab.recipes.sweeps import (
    training_images,
    unchanged,
    with_batch_size,
    with_settings,
    without_paco_loss,
)

CIFAR = "cifar100_lt_balanced_softmax"


def epochs(recipe: Recipe, images: int) -> float:
    batch = recipe.train.batch_size
    per_epoch = images // batch if recipe.train.drop_last else math.ceil(images / batch)
    return recipe.train.updates / per_epoch


@pytest.mark.parametrize("name", [CIFAR, f"{CIFAR}_r200", f"{CIFAR}_released", "cifar100_lt_paco"])
@pytest.mark.parametrize("size", [16, 128, 256, 1024])
def test_another_batch_size_keeps_the_epochs_and_scales_the_rate(name: str, size: int) -> None:
    base = find_recipe(name)
    images = sum(int(500 * (1 / base.data.ratio) ** (c / 99)) for c in range(100))
    changed = with_batch_size(size)(base)
    per_epoch = math.ceil(images / size)
    assert abs(epochs(changed, images) - epochs(base, images)) <= 0.5 / (per_epoch - 1)
    ratio = size / base.train.batch_size
    assert changed.optim.lr == pytest.approx(base.optim.lr * ratio, rel=1e-12)
    share = base.train.eval_every / base.train.updates
    assert changed.train.eval_every / changed.train.updates == pytest.approx(share, rel=0.01)
    if base.schedule.per == "epoch":
        assert changed.schedule == base.schedule
    else:
        rise = base.schedule.warmup / base.train.updates
        assert changed.schedule.warmup / changed.train.updates == pytest.approx(rise, rel=0.01)


def test_milestones_in_updates_move_with_the_epochs() -> None:
    drops = ScheduleConfig(kind="multistep", per="update", milestones=(2200, 4400), ahead=22)
    base = dataclasses.replace(find_recipe(CIFAR), schedule=drops)
    changed = with_batch_size(256)(base)  # 43 updates an epoch instead of 22
    assert changed.schedule.milestones == (4300, 8600) and changed.schedule.ahead == 43


def test_the_same_size_changes_nothing() -> None:
    base = find_recipe(CIFAR)
    assert with_batch_size(512)(base) == base == unchanged(base)


def test_images_that_are_not_known_are_refused() -> None:
    base = find_recipe(CIFAR)
    data = dataclasses.replace(base.data, ratio=37.0)
    with pytest.raises(ValueError, match="cifar100 with ratio 37, exponential, are not known"):
        with_batch_size(256)(dataclasses.replace(base, data=data))
    assert training_images(base) == 10_847
    files = find_recipe("imagenet_lt_balanced_softmax_resnet10")
    assert training_images(files) == 115_846
    own = dataclasses.replace(files.data, train_list="mine.txt", test_list="test.txt")
    with pytest.raises(ValueError, match="imagenet_lt with ratio 100, exponential, are not known"):
        training_images(dataclasses.replace(files, data=own))


def test_a_setting_of_the_module() -> None:
    base = find_recipe("demo")
    changed = with_settings("module", heads=2, dropout=0.1)(base)
    assert changed_settings(base, changed) == {"module.heads": (4, 2), "module.dropout": (0.5, 0.1)}


@pytest.mark.parametrize("suffix", ["", "_r200"])
def test_paco_without_its_loss_is_the_recipe_of_that_name(suffix: str) -> None:
    changed = without_paco_loss(find_recipe(f"cifar100_lt_paco{suffix}"))
    named = find_recipe(f"cifar100_lt_without_paco_loss{suffix}")
    assert changed_settings(changed, dataclasses.replace(named, task=changed.task)) == {}


def test_a_rate_that_was_chosen_stays_without_pacos_loss() -> None:
    chosen = with_settings("module", lr_factor=0.5)(find_recipe("cifar100_lt_paco"))
    assert without_paco_loss(chosen).module == chosen.module
