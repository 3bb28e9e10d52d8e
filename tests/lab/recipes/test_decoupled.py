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


def test_classes_are_balanced_by_the_order_or_by_what_is_learned() -> None:
    recipes = {n: find_recipe(f"cifar100_lt_{n}") for n in ("crt", "lws", "tau_norm", "balms")}
    samplers = {n: recipe.data.sampler for n, recipe in recipes.items()}
    assert samplers == {
        "crt": "class_balanced",
        "lws": "class_balanced",
        "tau_norm": "shuffle",
        "balms": "shuffle",
    }
    assert recipes["tau_norm"].train.updates == 1 and recipes["tau_norm"].hyper.tau == 1.0
    assert recipes["crt"].train.updates == 10 * 85 and recipes["crt"].optim.lr == 0.05
    assert recipes["balms"].data.meta_batch == 512 and recipes["balms"].optim.lr == 0.02
