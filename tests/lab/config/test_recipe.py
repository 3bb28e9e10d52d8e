"""Recipes are complete, frozen, and known by name."""

from __future__ import annotations

import dataclasses

import pytest

from batchformer.lab.recipes import RECIPES, find_recipe
from batchformer.lab.runs.folder import recipe_from_json, recipe_to_json


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe(name: str) -> None:
    recipe = find_recipe(name)
    assert recipe.name == name and recipe.summary and recipe.table
    assert (RECIPES[name].__doc__ or "").strip(), "its docstring names table and row"
    assert recipe_from_json(recipe_to_json(recipe)) == recipe, "config.json holds all of it"
    with pytest.raises(dataclasses.FrozenInstanceError):
        recipe.model = "other"  # type: ignore[misc]


def test_an_unknown_recipe_is_answered_with_the_nearest() -> None:
    with pytest.raises(ValueError, match="Did you mean cifar100_lt_balanced_softmax"):
        find_recipe("cifar100_lt_balanced")
    with pytest.raises(ValueError, match="batchformer list"):
        find_recipe("zzz")
