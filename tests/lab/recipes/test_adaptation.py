"""Recipes of domain adaptation say what MDD's protocol says."""

from __future__ import annotations

import math

import pytest
import torch

from batchformer.lab.config.data import DomainConfig
from batchformer.lab.engine.optim import lr_factor
from batchformer.lab.methods.mdd import Mdd
from batchformer.lab.models.networks import digits16_net
from batchformer.lab.recipes import find_recipe

NAMES = ("visda_mdd", "pacs_mdd")


@pytest.mark.parametrize("name", NAMES)
def test_what_both_share(name: str) -> None:
    recipe = find_recipe(name)
    data, hyper, optim = recipe.data, recipe.hyper, recipe.optim
    assert isinstance(data, DomainConfig) and data.adapt and data.held_out == 0.0
    assert (data.sampler, data.scored_on, data.size) == ("shuffle", "all", 224)
    assert recipe.method == "mdd" and recipe.weights == "timm"
    assert (hyper.penalty, hyper.mdd_gamma, hyper.bottleneck) == (1.0, 4.0, 1024)
    assert hyper.backbone_lr_factor == 0.1 and recipe.module.lr_factor == 1.0
    assert not hyper.frozen_norm and not hyper.feature_dropout and not hyper.swad
    assert (optim.name, optim.lr, optim.momentum) == ("sgd", 0.004, 0.9)
    assert optim.nesterov and optim.weight_decay == 5e-4
    assert recipe.train.batch_size == 36 and recipe.train.drop_last
    assert recipe.train.select_on == "last"


@pytest.mark.parametrize("name", NAMES)
def test_the_rate_over_time(name: str) -> None:
    recipe = find_recipe(name)
    for update in (0, 1, 1_000, 2_500, 29_999):
        expected = (1 + 0.0002 * update) ** -0.75
        found = lr_factor(recipe.schedule, update, recipe.train.updates, 1_000)
        assert found == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_the_reversal_over_time(name: str) -> None:
    hyper = find_recipe(name).hyper
    module = find_recipe(name).module
    method = Mdd(digits16_net(3), torch.ones(3), seed=0, hyper=hyper, module=module)
    for update in (0, 1, 500, 1_000, 30_000):
        method.updates.fill_(update)
        expected = 2 * 0.1 / (1 + math.exp(-update / 1_000)) - 0.1
        assert float(method.reversal()) == pytest.approx(expected, abs=1e-7)
    assert float(method.reversal()) == pytest.approx(0.1)


def test_visda() -> None:
    recipe = find_recipe("visda_mdd")
    data = recipe.data
    assert isinstance(data, DomainConfig)
    assert (data.name, data.source, data.target) == ("visda", "synthetic", "real")
    assert data.augment == "centre" and recipe.model == "resnet101.tv_in1k"
    assert recipe.train.updates == 30 * 1_000 and recipe.train.eval_every == 1_000
    assert recipe.paper == {"baseline": {"real": 76.8}, "batchformer": {"real": 77.8}}


def test_pacs() -> None:
    recipe = find_recipe("pacs_mdd")
    data = recipe.data
    assert isinstance(data, DomainConfig)
    assert (data.name, data.source, data.target) == ("pacs", "photo", "art_painting")
    assert data.augment == "domain" and recipe.model == "resnet50.tv_in1k"
    assert recipe.train.updates == 3_000 and not recipe.paper
