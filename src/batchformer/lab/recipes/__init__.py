"""Experiments by name. A family file lists its recipes once, at its end."""

from __future__ import annotations

import difflib
from collections.abc import Callable

from batchformer.lab.config.recipe import Recipe
from batchformer.lab.recipes import (
    cifar_lt,
    contrastive,
    contrastive_small,
    detection,
    domains,
    image_lists_lt,
    imagenet_lt,
    recognition,
    small,
    zero_shot,
)

#: In the order of `batchformer list`.
FAMILIES: tuple[tuple[Callable[[], Recipe], ...], ...] = (
    small.RECIPES,
    cifar_lt.RECIPES,
    imagenet_lt.RECIPES,
    image_lists_lt.RECIPES,
    domains.RECIPES,
    small.ROTATED_DIGITS,
    zero_shot.RECIPES,
    recognition.RECIPES,
    contrastive.RECIPES,
    contrastive_small.RECIPES,
    detection.RECIPES,
)
#: What makes each recipe, by the name of the recipe.
RECIPES = {make.__name__: make for family in FAMILIES for make in family}


def find_recipe(name: str) -> Recipe:
    """The recipe of this name; an unknown one is answered with the nearest."""
    if name not in RECIPES:
        near = difflib.get_close_matches(name, RECIPES, 3, cutoff=0.4)
        hint = (
            f"Did you mean {' or '.join(near)}?" if near else "`batchformer list` shows them all."
        )
        raise ValueError(f"There is no recipe {name!r}. {hint}")
    return RECIPES[name]()
