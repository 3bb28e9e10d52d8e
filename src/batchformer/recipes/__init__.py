"""Experiments by name."""

from __future__ import annotations

import difflib
from collections.abc import Callable

from batchformer.recipes import demo, long_tailed
from batchformer.recipes.recipe import Recipe

RECIPES: dict[str, Callable[[], Recipe]] = {
    "demo": demo.demo,
    "cifar100_lt_balanced_softmax": long_tailed.cifar100_lt_balanced_softmax,
    "cifar100_lt_balanced_softmax_r200": long_tailed.cifar100_lt_balanced_softmax_r200,
    "cifar100_lt_balanced_softmax_released": long_tailed.cifar100_lt_balanced_softmax_released,
    "cifar100_lt_cross_entropy": long_tailed.cifar100_lt_cross_entropy,
    "cifar10_lt_balanced_softmax": long_tailed.cifar10_lt_balanced_softmax,
    "cifar10_lt_balanced_softmax_r200": long_tailed.cifar10_lt_balanced_softmax_r200,
}


def find_recipe(name: str) -> Recipe:
    """The recipe of this name; an unknown one is answered with the nearest."""
    if name not in RECIPES:
        near = difflib.get_close_matches(name, RECIPES, 3, cutoff=0.4)
        hint = (
            f"Did you mean {' or '.join(near)}?" if near else "`batchformer list` shows them all."
        )
        raise ValueError(f"There is no recipe {name!r}. {hint}")
    return RECIPES[name]()
