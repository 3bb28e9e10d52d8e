"""The settings of LDAM-DRW, as its authors give them."""

from __future__ import annotations

from batchformer.recipes import find_recipe


def test_ldam() -> None:
    recipe = find_recipe("cifar100_lt_ldam")
    optim, hyper = recipe.optim, recipe.hyper
    assert (optim.lr, optim.weight_decay, optim.nesterov) == (0.1, 2e-4, False)
    assert (recipe.train.batch_size, recipe.train.updates) == (128, 200 * 85)
    assert (hyper.margin, hyper.scale, hyper.reweight_epoch) == (0.5, 30.0, 160)
    assert recipe.data.augment == "standard"
