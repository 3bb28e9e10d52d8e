"""The network of a recipe, and weights for it from another run."""

from __future__ import annotations

from typing import Any

from torch import nn

from batchformer.models.build import EXPERTS, OWN, build_model
from batchformer.recipes.recipe import Recipe
from batchformer.recipes.start import Weights


def build_network(recipe: Recipe, num_classes: int, experts: int | None = None) -> nn.Module:
    """The recipe's network with random weights.

    Args:
        recipe: names the network and what it is told.
        num_classes: K.
        experts: of a network of experts; None for the recipe's number.
    """
    options: dict[str, Any] = {}
    if recipe.model in EXPERTS:
        options = {"experts": experts or recipe.hyper.experts, "scale": recipe.hyper.scale}
    elif recipe.model not in OWN and _is_timms_resnet(recipe.model):
        options = {"zero_init_last": recipe.hyper.zero_init_last}
    return build_model(recipe.model, num_classes, **options)


def take_weights(network: nn.Module, weights: Weights, source: str) -> None:
    """Load the weights of a run, or say how its network differs.

    Args:
        network: takes the weights.
        weights: by the names of the network's state.
        source: the run as the recipe names it.
    """
    try:
        network.load_state_dict(dict(weights))
    except RuntimeError as error:
        raise ValueError(
            f"The network of {source} does not fit this run's {type(network).__name__}: name a "
            f"run of the same network and method of classification. ({error})"
        ) from error


def _is_timms_resnet(name: str) -> bool:
    from timm.models import is_model_in_modules

    return bool(is_model_in_modules(name, ["resnet"]))
