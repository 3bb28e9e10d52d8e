"""Recipes are complete, frozen, and known by name."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil

import pytest

from batchformer.lab import recipes
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


def test_no_recipe_is_left_out_of_the_list_of_its_family() -> None:
    for found in pkgutil.iter_modules(recipes.__path__):
        family = importlib.import_module(f"{recipes.__name__}.{found.name}")
        for name, make in inspect.getmembers(family, inspect.isfunction):
            public = make.__module__ == family.__name__ and not name.startswith("_")
            signature = inspect.signature(make)
            if public and not signature.parameters and signature.return_annotation == "Recipe":
                assert inspect.unwrap(RECIPES[name]) is make, (
                    f"{name} is in no RECIPES of {found.name}.py"
                )
    first = ["demo", "my_folder", "cifar100_lt_balanced_softmax"]
    assert [name for name in RECIPES if name in first] == first


def test_an_unknown_recipe_is_answered_with_the_nearest() -> None:
    with pytest.raises(ValueError, match="Did you mean cifar100_lt_balanced_softmax"):
        find_recipe("cifar100_lt_balanced")
    with pytest.raises(ValueError, match="batchformer list"):
        find_recipe("zzz")
