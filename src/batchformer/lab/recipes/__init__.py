"""Experiments by name. A family file lists its recipes once, at its end."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Iterator, Mapping
from functools import cache, wraps

from batchformer.lab.config.recipe import NOT_IN_THE_PAPER, Recipe

#: In the order of `batchformer list`: the file of each family, and the tuple of its recipes.
FAMILIES = (
    "small:RECIPES",
    "cifar_lt:RECIPES",
    "image_files_lt:RECIPES",
    "oltr:RECIPES",
    "lfme:RECIPES",
    "domains:RECIPES",
    "small:ROTATED_DIGITS",
    "zero_shot:RECIPES",
    "recognition:RECIPES",
    "batchformer_v2:RECIPES",
    "contrastive:RECIPES",
    "contrastive_small:RECIPES",
    "detection:RECIPES",
)


@cache
def _family(path: str) -> dict[str, Callable[[], Recipe]]:
    file, _, listed = path.partition(":")
    module = importlib.import_module(f"batchformer.lab.recipes.{file}")
    return {make.__name__: _with_numbers(make) for make in getattr(module, listed)}


def _with_numbers(make: Callable[[], Recipe]) -> Callable[[], Recipe]:
    """Wrap `make` so that its recipe has the paper's numbers for that name."""

    @wraps(make)
    def made() -> Recipe:
        recipe = make()
        if recipe.table == NOT_IN_THE_PAPER:
            return recipe
        from batchformer.lab.recipes.paper import numbers_for  # late: most commands need no numbers

        # A recipe with the released schedule belongs to the same row.
        return recipe.changed(paper=numbers_for(recipe.name.removesuffix("_released")))

    return made


class _Recipes(Mapping[str, Callable[[], Recipe]]):
    """The function that makes each recipe, by name; families are imported when searched."""

    def __getitem__(self, name: str) -> Callable[[], Recipe]:
        for path in FAMILIES:
            if name in _family(path):
                return _family(path)[name]
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        for path in FAMILIES:
            yield from _family(path)

    def __len__(self) -> int:
        return sum(1 for _ in self)


RECIPES = _Recipes()


def find_recipe(name: str) -> Recipe:
    """The recipe of this name; the error for an unknown one suggests the nearest."""
    if name not in RECIPES:
        near = difflib.get_close_matches(name, RECIPES, 3, cutoff=0.4)
        hint = (
            f"Did you mean {' or '.join(near)}?" if near else "`batchformer list` shows them all."
        )
        raise ValueError(f"There is no recipe {name!r}. {hint}")
    return RECIPES[name]()
