"""The settings of PaCo, as its authors give them, and what the ablation changes of them."""

from __future__ import annotations

import dataclasses

import pytest

from batchformer.lab.recipes import find_recipe


@pytest.mark.parametrize(("suffix", "per_epoch"), [("", 84), ("_r200", 74)])
def test_paco_and_its_ablation(suffix: str, per_epoch: int) -> None:
    recipe = find_recipe(f"cifar100_lt_paco{suffix}")
    optim, schedule, train = recipe.optim, recipe.schedule, recipe.train
    assert (optim.lr, optim.weight_decay) == (0.05, 5e-4)
    assert (optim.name, optim.momentum, optim.nesterov) == ("sgd", 0.9, False)
    assert (train.batch_size, train.updates, train.epochs) == (128, 400 * per_epoch, 0)
    assert train.drop_last and recipe.data.augment == "paco" and recipe.start == ""
    assert (schedule.kind, schedule.per, schedule.ahead) == ("multistep", "epoch", 0)
    assert (schedule.milestones, schedule.gamma) == ((320, 360), 0.1)
    # Rates are 1/10, 2/10, ..., 10/10 in the first ten epochs.
    assert (schedule.warmup, schedule.warmup_from) == (9, 0.1)
    hyper = recipe.hyper
    assert hyper.momentum == 0.999 and hyper.norm_parts == 1, "the paper trains on one GPU"
    assert (hyper.alpha, hyper.temperature, hyper.queue, hyper.dim) == (0.01, 0.05, 1024, 32)
    ablated = find_recipe(f"cifar100_lt_without_paco_loss{suffix}")
    assert ablated.method == "balanced_softmax" and ablated.data.augment == "autoaugment"
    for part in ("optim", "schedule", "train", "model"):
        assert getattr(ablated, part) == getattr(recipe, part), part


@pytest.mark.parametrize("suffix", ["", "_r200"])
def test_the_encoder_has_the_rate_that_goes_with_the_loss(suffix: str) -> None:
    """The paper: a tenth of the rate for Balanced Softmax; PaCo follows MoCo, which has it all."""
    paco = find_recipe(f"cifar100_lt_paco{suffix}")
    ablated = find_recipe(f"cifar100_lt_without_paco_loss{suffix}")
    assert (paco.module.lr_factor, ablated.module.lr_factor) == (1.0, 0.1)
    assert ablated.module == find_recipe("cifar100_lt_balanced_softmax").module
    assert dataclasses.replace(ablated.module, lr_factor=1.0) == paco.module
