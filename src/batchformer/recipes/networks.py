"""The network of a recipe, and weights for it from another run or a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from batchformer.models.build import EXPERTS, OWN, build_model
from batchformer.models.trained_part import train_last_block
from batchformer.models.weights import find_weights, fit_weights, read_weights, timm_weights
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
    network = build_model(recipe.model, num_classes, **options)
    if recipe.convolutions == "last_block":
        train_last_block(network)
    return network


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


#: What the recipe's weights are called where timm has them.
TIMM = "timm"
#: Methods that need the classifier of the network they are given.
WITH_CLASSIFIER = ("tau_norm", "lws", "ride_assignment")


def given_weights(recipe: Recipe) -> Path | None:
    """The file that the recipe's weights are in, or None where it names no file.

    Raises:
        FileNotFoundError: it is not there; says what was looked for.
    """
    return find_weights(recipe.weights) if recipe.weights not in ("", TIMM) else None


def take_given_weights(network: nn.Module, recipe: Recipe, say: Callable[[str], None]) -> None:
    """Load the weights that the recipe names, if it names any.

    Args:
        network: takes them.
        recipe: names them.
        say: takes one line on what was loaded and what was not.
    """
    if not recipe.weights:
        return
    file = given_weights(recipe)
    weights = timm_weights(recipe.model) if file is None else read_weights(file)
    fitted = fit_weights(network, weights, str(file or f"timm's {recipe.model}"))
    if not fitted.classifier and recipe.method in WITH_CLASSIFIER:
        raise ValueError(
            f"{recipe.method} works on a trained classifier. {fitted.words} Name weights with a "
            "classifier of these classes by --weights, or a run by --start."
        )
    say(fitted.words)


def _is_timms_resnet(name: str) -> bool:
    from timm.models import is_model_in_modules

    return bool(is_model_in_modules(name, ["resnet"]))
