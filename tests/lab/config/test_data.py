"""Every family of experiments has its data, and every data its family."""

from __future__ import annotations

import typing

import pytest

from batchformer.lab.config.data import BY_TASK, DataConfig
from batchformer.lab.recipes import RECIPES, find_recipe


def test_no_data_is_without_a_family() -> None:
    assert set(BY_TASK.values()) == set(typing.get_args(DataConfig))


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_have_the_data_of_their_family(name: str) -> None:
    recipe = find_recipe(name)
    assert type(recipe.data) is BY_TASK[recipe.task]


def test_every_family_has_a_recipe() -> None:
    assert {find_recipe(name).task for name in RECIPES} == BY_TASK.keys()
