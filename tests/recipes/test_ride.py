"""The settings of RIDE, as its authors give them."""

from __future__ import annotations

from batchformer.recipes import find_recipe


def test_ride() -> None:
    recipe = find_recipe("cifar100_lt_ride")
    optim, hyper = recipe.optim, recipe.hyper
    assert (optim.lr, optim.weight_decay, optim.nesterov) == (0.1, 5e-4, True)
    assert (hyper.experts, hyper.diversity, hyper.temperature_factor) == (3, -0.45, 0.05)
    assert (recipe.module.heads, recipe.module.streams, recipe.module.lr_factor) == (1, "shared", 1)
    assert recipe.data.augment == "rotation" and recipe.paper["baseline"]["all"] == 48.0
    last = find_recipe("cifar100_lt_ride_assignment")
    assert (last.optim.lr, last.optim.weight_decay, last.train.batch_size) == (0.01, 5e-4, 512)
    assert last.train.updates == 5 * 22 and last.data.sampler == "class_balanced"
    teacher = find_recipe("cifar100_lt_ride_distilled").teacher
    assert find_recipe(teacher.partition("/")[0]).hyper.experts == recipe.hyper.teacher_experts
