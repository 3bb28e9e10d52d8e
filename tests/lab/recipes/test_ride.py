"""The settings of RIDE, as its authors give them."""

from __future__ import annotations

import pytest

from batchformer.lab.recipes import find_recipe


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("cifar100_lt_ride", ""),
        ("cifar100_lt_ride_two_stage", "cifar100_lt_ride/baseline"),
        ("cifar100_lt_ride_distilled", ""),
        ("cifar100_lt_ride_6experts", ""),
    ],
)
def test_every_stage_is_trained_for_200_epochs(name: str, start: str) -> None:
    recipe = find_recipe(name)
    train, schedule = recipe.train, recipe.schedule
    assert recipe.start == start and (recipe.method, recipe.model) == ("ride", "ride_resnet32")
    assert (train.batch_size, train.updates, train.epochs) == (128, 200 * 85, 0)
    assert (train.drop_last, recipe.data.ratio) == (False, 100)
    assert (schedule.kind, schedule.per, schedule.ahead) == ("multistep", "epoch", 0)
    assert (schedule.milestones, schedule.gamma) == ((160, 180), 0.01)
    # Rates are 1/5, 2/5, ..., 5/5 in the first five epochs.
    assert (schedule.warmup, schedule.warmup_from) == (4, 0.2)
    hyper = recipe.hyper
    assert (hyper.reweight_epoch, hyper.reweight_beta) == (160, 0.9999)
    assert (hyper.margin, hyper.scale) == (0.5, 30.0)


def test_ride() -> None:
    recipe = find_recipe("cifar100_lt_ride")
    optim, hyper = recipe.optim, recipe.hyper
    assert (optim.name, optim.lr, optim.momentum) == ("sgd", 0.1, 0.9)
    assert (optim.weight_decay, optim.nesterov) == (5e-4, True)
    assert (hyper.experts, hyper.diversity, hyper.temperature_factor) == (3, -0.45, 0.05)
    assert (recipe.module.heads, recipe.module.streams, recipe.module.lr_factor) == (1, "shared", 1)
    assert recipe.data.augment == "rotation" and recipe.paper["baseline"]["all"] == 48.0
    last = find_recipe("cifar100_lt_ride_assignment")
    assert (last.optim.lr, last.optim.weight_decay, last.train.batch_size) == (0.01, 5e-4, 512)
    assert last.train.updates == 5 * 22 and last.data.sampler == "class_balanced"
    assert last.start == "cifar100_lt_ride"
    assert (last.schedule.kind, last.schedule.per, last.schedule.warmup) == ("cosine", "epoch", 0)
    teacher = find_recipe("cifar100_lt_ride_distilled").teacher
    assert find_recipe(teacher.partition("/")[0]).hyper.experts == recipe.hyper.teacher_experts
