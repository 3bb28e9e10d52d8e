"""The settings of PaCo, as its authors give them, and what the ablation changes of them."""

from __future__ import annotations

import pytest

from batchformer.recipes import find_recipe


@pytest.mark.parametrize(("suffix", "per_epoch"), [("", 84), ("_r200", 74)])
def test_paco_and_its_ablation(suffix: str, per_epoch: int) -> None:
    recipe = find_recipe(f"cifar100_lt_paco{suffix}")
    assert (recipe.optim.lr, recipe.optim.weight_decay) == (0.05, 5e-4)
    assert recipe.train.updates == 400 * per_epoch and recipe.train.drop_last
    hyper = recipe.hyper
    assert (hyper.alpha, hyper.temperature, hyper.queue, hyper.dim) == (0.01, 0.05, 1024, 32)
    ablated = find_recipe(f"cifar100_lt_without_paco_loss{suffix}")
    assert ablated.method == "balanced_softmax" and ablated.data.augment == "autoaugment"
    for part in ("optim", "schedule", "train", "module", "model"):
        assert getattr(ablated, part) == getattr(recipe, part), part
