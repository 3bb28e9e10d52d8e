"""The sides of a comparison: each arm is the recipe with one thing changed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from batchformer.recipes.recipe import Recipe


def _module(**changes: Any) -> Callable[[Recipe], Recipe]:
    def change(recipe: Recipe) -> Recipe:
        return dataclasses.replace(recipe, module=dataclasses.replace(recipe.module, **changes))

    return change


def _hyper(**changes: Any) -> Callable[[Recipe], Recipe]:
    def change(recipe: Recipe) -> Recipe:
        return dataclasses.replace(recipe, hyper=dataclasses.replace(recipe.hyper, **changes))

    return change


def _baseline(loss_multiplier: float = 1.0) -> Callable[[Recipe], Recipe]:
    def change(recipe: Recipe) -> Recipe:
        module = dataclasses.replace(recipe.module, enabled=False)
        factor = recipe.train.loss_multiplier * loss_multiplier
        train = dataclasses.replace(recipe.train, loss_multiplier=factor)
        return dataclasses.replace(recipe, module=module, train=train)

    return change


def _random_weights(recipe: Recipe) -> Recipe:
    """Without BatchFormer, and without the weights that the recipe begins with."""
    return dataclasses.replace(_baseline()(recipe), start="", weights="")


#: Every arm, with what it is for.
ARMS: dict[str, tuple[Callable[[Recipe], Recipe], str]] = {
    "baseline": (_baseline(), "the network alone, without BatchFormer"),
    "batchformer": (_module(), "BatchFormer as in the paper"),
    "batchformer_self": (_module(attend="self"), "control: attention masked to the diagonal"),
    "batchformer_frozen": (_module(trained=False), "control: the encoder stays untrained"),
    "batchformer_mixed_only": (_module(streams="mixed_only"), "ablation: no shared classifier"),
    "batchformer_official_loss": (
        _module(loss_scale="official"),
        "the released code's loss: both halves and their mean, three times the paper's",
    ),
    "batchformer_official_grouping": (
        _hyper(irm_grouping="official"),
        "irm: the released code's parts of a batch, which mix domains",
    ),
    "random_weights": (
        _random_weights,
        "control: features of an untrained network, for probes of trained ones",
    ),
    "baseline_loss1.5x": (_baseline(1.5), "control: the baseline with 1.5 times its loss"),
    "baseline_loss3x": (_baseline(3.0), "control: the baseline with 3 times its loss"),
}


def with_arm(recipe: Recipe, arm: str) -> Recipe:
    """The recipe as this arm trains it."""
    if arm not in ARMS:
        raise ValueError(f"There is no arm {arm!r}; there are {', '.join(ARMS)}.")
    return ARMS[arm][0](recipe)
