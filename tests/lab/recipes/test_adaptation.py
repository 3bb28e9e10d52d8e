"""Recipes of domain adaptation say what MDD's protocol says."""

from __future__ import annotations

import math

import pytest
import torch

from batchformer.lab.engine.optim import lr_factor
from batchformer.lab.methods.domains import Mdd
from batchformer.lab.models.networks import digits16_net
from batchformer.lab.recipes import find_recipe

NAMES = ("visda_mdd", "pacs_mdd")


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
