"""The settings of LDAM-DRW, as its authors give them."""

from __future__ import annotations

from batchformer.lab.recipes import find_recipe


def test_ldam() -> None:
    recipe = find_recipe("cifar100_lt_ldam")
    optim, hyper = recipe.optim, recipe.hyper
    assert (optim.lr, optim.weight_decay, optim.nesterov) == (0.1, 2e-4, False)
    assert (optim.name, optim.momentum) == ("sgd", 0.9)
    train, schedule = recipe.train, recipe.schedule
    assert (train.batch_size, train.updates, train.epochs) == (128, 200 * 85, 0)
    assert train.drop_last is False and recipe.start == ""
    assert (schedule.kind, schedule.per, schedule.ahead) == ("multistep", "epoch", 0)
    assert (schedule.milestones, schedule.gamma) == ((160, 180), 0.01)
    # Rates are 1/5, 2/5, ..., 5/5 in the first five epochs.
    assert (schedule.warmup, schedule.warmup_from) == (4, 0.2)
    assert hyper.reweight_beta == 0.9999
    assert (hyper.margin, hyper.scale, hyper.reweight_epoch) == (0.5, 30.0, 160)
    assert recipe.data.augment == "standard"
