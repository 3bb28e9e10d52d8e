"""Settings of recipes and numbers of the paper, as settings.json has them; none changes by chance.

A recipe has to be there once numbers of it are published: the paper's, or records in ``results``.
The numbers were compared with the tables as printed.
After a change that is meant, write the file again: ``python tests/lab/recipes/test_settings.py``.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from batchformer.lab.config.recipe import Recipe, changed_settings
from batchformer.lab.recipes import RECIPES, find_recipe
from batchformer.lab.recipes.paper import ROWS
from helpers.lab_runs import published_recipes

FILE = Path(__file__).with_name("settings.json")
CONTENT = json.loads(FILE.read_text())


def defaults(kind: type) -> dict[str, Any]:
    """Fields of settings that have a default, with it."""
    return {
        field.name: field.default if field.default is not dataclasses.MISSING else made()
        for field in dataclasses.fields(kind)
        if (made := field.default_factory) is not dataclasses.MISSING
        or field.default is not dataclasses.MISSING
    }


def settings(recipe: Recipe) -> dict[str, Any]:
    """Settings that are not at their defaults, by dotted name, as JSON holds them."""
    usual: dict[str, Any] = {}
    for field in dataclasses.fields(recipe):
        value = getattr(recipe, field.name)
        known = dataclasses.is_dataclass(value)
        usual[field.name] = defaults(type(value)) if known else defaults(Recipe).get(field.name)
    found = changed_settings(usual, dataclasses.asdict(recipe))
    plain: dict[str, Any] = json.loads(json.dumps({key: new for key, (_, new) in found.items()}))
    return plain


def all_defaults() -> dict[str, Any]:
    """Defaults of all kinds of settings that recipes have."""
    recipes = [find_recipe(name) for name in sorted(RECIPES)]
    values = [getattr(one, field.name) for one in recipes for field in dataclasses.fields(one)]
    kinds = {
        type(value).__name__: type(value) for value in values if dataclasses.is_dataclass(value)
    }
    plain: dict[str, Any] = json.loads(
        json.dumps({name: defaults(kind) for name, kind in sorted(kinds.items())})
    )
    return plain


def rows() -> dict[str, dict[str, float]]:
    """Every printed number, by row and metric."""
    return {
        " | ".join((row.table, row.data, row.model, row.method, row.arm)): dict(row.numbers)
        for row in ROWS
    }


def test_the_numbers_of_the_paper() -> None:
    assert rows() == CONTENT["rows"] and len(CONTENT["rows"]) == len(ROWS)


@pytest.mark.parametrize("name", CONTENT["recipes"])
def test_the_settings_of_a_recipe(name: str) -> None:
    assert settings(find_recipe(name)) == CONTENT["recipes"][name]


@pytest.mark.parametrize("kind", CONTENT["defaults"])
def test_the_defaults_of_settings(kind: str) -> None:
    assert CONTENT["defaults"][kind].items() <= all_defaults()[kind].items()


def test_no_recipe_with_published_numbers_is_missing() -> None:
    assert published_recipes() <= CONTENT["recipes"].keys()


def lines(content: dict[str, Any]) -> str:
    return ",\n".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in content.items())


if __name__ == "__main__":
    recipes = {name: settings(find_recipe(name)) for name in sorted(RECIPES)}
    parts = {"defaults": all_defaults(), "recipes": recipes, "rows": rows()}
    written = ",\n".join(f'"{name}": {{\n{lines(part)}\n}}' for name, part in parts.items())
    FILE.write_text(f"{{\n{written}\n}}\n")
