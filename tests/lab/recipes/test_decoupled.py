"""Recipes whose runs start from others."""

from __future__ import annotations

from batchformer.lab.config.arms import ARMS
from batchformer.lab.recipes import RECIPES, find_recipe


def test_runs_that_others_start_from_are_recipes_on_the_same_data() -> None:
    others = ("linear_probe", "knn", "detector")  # on features learnt without these labels
    found = [r for r in map(find_recipe, RECIPES) if r.start or r.teacher]
    started = [r for r in found if r.method not in others]
    assert {r.method for r in started} == {
        "ride",
        "ride_assignment",
        "crt",
        "tau_norm",
        "lws",
        "balms",
    }
    for recipe in started:
        name, _, arm = (recipe.start or recipe.teacher).partition("/")
        source = find_recipe(name)
        assert not arm or arm in ARMS
        for key in ("name", "ratio", "profile", "seed"):
            assert getattr(source.data, key) == getattr(recipe.data, key)
        assert source.model == recipe.model
