"""ImageNet-LT's recipes say what the protocol says."""

from __future__ import annotations

import pytest

from batchformer.lab.engine.optim import lr_factor
from batchformer.lab.recipes import find_recipe

PER_EPOCH = {128: 906, 400: 290}  # of 115,846 images, the last batch kept


@pytest.mark.parametrize("model", ["resnet10", "resnet50", "resnext50"])
def test_ride(model: str) -> None:
    recipe = find_recipe(f"imagenet_lt_ride_{model}")
    assert recipe.model == f"ride_{model}" and recipe.train.updates == 100 * PER_EPOCH[400]
    assert recipe.optim.nesterov and (recipe.optim.lr, recipe.optim.weight_decay) == (0.1, 2e-4)
    assert (recipe.module.streams, recipe.module.lr_factor) == ("mixed_only", 1.0)
    hyper = recipe.hyper
    assert (hyper.diversity, hyper.temperature_factor, hyper.reweight_epoch) == (-0.2, 0.02, 80)
    rates = [
        lr_factor(recipe.schedule, epoch * 290, recipe.train.updates, 290)
        for epoch in (0, 4, 59, 60, 79, 80, 99)
    ]
    assert rates == pytest.approx([0.2, 1, 1, 0.1, 0.1, 0.01, 0.01])
    assert bool(recipe.paper) == (model != "resnext50")


@pytest.mark.parametrize("model", ["resnet10", "resnet50"])
def test_two_stages_differ_in_their_start(model: str) -> None:
    one, two = (find_recipe(f"imagenet_lt_ride_{model}{end}") for end in ("", "_two_stage"))
    assert two.start == f"{one.name}/baseline" and not one.start
    assert (two.train, two.optim, two.schedule) == (one.train, one.optim, one.schedule)
    assert (two.hyper, two.module, two.data) == (one.hyper, one.module, one.data)


def test_paco() -> None:
    recipe = find_recipe("imagenet_lt_paco")
    assert recipe.model == "resnet50" and recipe.data.augment == "paco" and recipe.train.drop_last
    assert recipe.hyper.norm_parts == 4, "the paper trains on 4 GPUs, and PaCo shuffles keys"
    assert recipe.train.updates == 400 * 905
    hyper = recipe.hyper
    assert (hyper.alpha, hyper.temperature, hyper.queue, hyper.dim) == (0.05, 0.2, 8192, 128)
    assert (recipe.optim.lr, recipe.optim.weight_decay) == (0.02, 5e-4)
    rates = [
        lr_factor(recipe.schedule, epoch * 905, recipe.train.updates, 905) for epoch in range(11)
    ]
    assert rates[:10] == pytest.approx([(e + 1) / 10 for e in range(10)]) and 0.99 < rates[10] < 1


@pytest.mark.parametrize("base", ["imagenet_lt_ride_resnet10", "cifar100_lt_ride"])
def test_distillation_from_six_experts(base: str) -> None:
    student = find_recipe(f"{base}_distilled")
    name, _, arm = student.teacher.partition("/")
    teacher = find_recipe(name)
    assert arm == "baseline" and teacher.hyper.experts == student.hyper.teacher_experts == 6
    assert student.hyper.experts == 3 and teacher.model == student.model
    assert student.train == teacher.train and not teacher.paper
