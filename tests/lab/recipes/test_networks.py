"""Every network that a recipe names is built with the recipe's options, and takes its images."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from batchformer.lab.recipes import RECIPES, find_recipe
from batchformer.lab.runs.build import build_network
from helpers.networks import only_built

#: The first recipe that names each network.
FIRST = {find_recipe(name).model: name for name in reversed(list(RECIPES))}
SIDES = {"digits_net": (1, 8), "digits16_net": (1, 16)}


@pytest.mark.parametrize("model", sorted(filter(None, FIRST)))
def test_a_network_of_recipes(model: str) -> None:
    recipe = find_recipe(FIRST[model])
    channels, side = SIDES.get(model, (3, 32))
    if "patch" in model:
        recipe = recipe.changed(data={"size": side})
    with only_built(), torch.no_grad():
        network: Any = build_network(recipe, 5).eval()
        logits = network(torch.zeros(2, channels, side, side))
    assert logits.shape[-1] == 5 and network.num_features > 0
    blocks = {"resnet18.tv_in1k": "BasicBlock", "resnet50": "Bottleneck"}
    if model in blocks:
        assert type(network.layer1[0]).__name__ == blocks[model]
