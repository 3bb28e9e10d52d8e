"""Rotated digits: the protocols of larger sets, in small."""

from __future__ import annotations

import pytest

from batchformer.lab.recipes import RECIPES, find_recipe

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
