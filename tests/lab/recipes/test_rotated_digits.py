"""Rotated digits: the protocols of larger sets, in small."""

from __future__ import annotations

import pytest

from batchformer.lab.config.data import DomainConfig
from batchformer.lab.engine.optim import lr_factor
from batchformer.lab.recipes import RECIPES, find_recipe

#: Method, weight of the penalty, and domains in a batch (0: all sources).
GENERALIZING = {
    "rotated_digits_erm": ("cross_entropy", None, 0),
    "rotated_digits_coral": ("coral", 1.0, 0),
    "rotated_digits_irm": ("irm", 1.0, 0),
    "rotated_digits_vrex": ("vrex", 3.0, 0),
    "rotated_digits_mixstyle": ("mixstyle", None, 2),
}
#: The recipe of PACS with the same method.
LARGE = {name: name.replace("rotated_digits", "pacs") for name in RECIPES if "rotated" in name}


@pytest.mark.parametrize("name", LARGE)
def test_each_has_the_settings_of_its_method_on_pacs(name: str) -> None:
    small, large = find_recipe(name), find_recipe(LARGE[name])
    assert small.method == large.method and small.module == large.module
    assert not small.paper and not small.weights and small.model == "digits16_net"
    for setting in ("penalty", "penalty_from", "irm_grouping", "mdd_gamma", "reversal"):
        assert getattr(small.hyper, setting) == getattr(large.hyper, setting), setting
    assert small.schedule.kind == large.schedule.kind
    assert bool(small.schedule.restart) == bool(large.schedule.restart)
    assert small.train.select_on == large.train.select_on


@pytest.mark.parametrize("name", GENERALIZING)
def test_generalization(name: str) -> None:
    method, penalty, domains = GENERALIZING[name]
    recipe = find_recipe(name)
    data = recipe.data
    assert isinstance(data, DomainConfig) and recipe.method == method
    assert (data.name, data.target, data.size) == ("rotated_digits", "each", 16)
    assert (data.sampler, data.domains_in_batch, data.epoch) == ("domains", domains, 50)
    assert (data.held_out, data.scored_on, data.augment) == (0.2, "all", "shift")
    train = recipe.train
    assert (train.batch_size, train.updates, train.eval_every) == (60, 300, 50)
    optim = recipe.optim
    assert (optim.name, optim.lr, optim.nesterov, optim.weight_decay) == ("sgd", 0.01, True, 5e-4)
    if penalty is not None:
        assert recipe.hyper.penalty == penalty
    anew = method in ("irm", "vrex")
    assert recipe.schedule.restart == (50 if anew else 0)
    assert recipe.hyper.penalty_from == (1 if anew else 0)
    assert lr_factor(recipe.schedule, 50, 300, 50) == pytest.approx(1.0 if anew else 0.9330127)
    if method == "mixstyle":
        assert recipe.hyper.mixstyle_after == ("layer1",)


def test_adaptation() -> None:
    recipe = find_recipe("rotated_digits_mdd")
    data = recipe.data
    assert isinstance(data, DomainConfig) and data.adapt and data.held_out == 0
    assert (data.source, data.target, data.sampler) == ("r0", "r45", "shuffle")
    assert recipe.train.updates == 1_500 and recipe.train.drop_last
    assert (recipe.hyper.bottleneck, recipe.hyper.backbone_lr_factor) == (64, 1.0)
    assert lr_factor(recipe.schedule, 300, 300, 8) == pytest.approx(1.06**-0.75)
