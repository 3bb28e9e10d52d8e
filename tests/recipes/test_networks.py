"""Networks are told what the recipe says, and take fitting weights only."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from torch import nn

from batchformer.models.build import build_model
from batchformer.models.ride import RideNetwork
from batchformer.recipes import find_recipe
from batchformer.recipes.networks import (
    build_network,
    given_weights,
    take_given_weights,
    take_weights,
)


def test_experts_and_scale() -> None:
    recipe = find_recipe("cifar100_lt_ride")
    recipe = dataclasses.replace(recipe, hyper=dataclasses.replace(recipe.hyper, scale=7.0))
    network, larger = build_network(recipe, 4), build_network(recipe, 4, experts=5)
    assert isinstance(network, RideNetwork) and isinstance(larger, RideNetwork)
    assert (network.experts, larger.experts, network.classifiers[0].scale) == (3, 5, 7.0)


@pytest.mark.parametrize("zero", [False, True])
def test_the_last_normalisation_of_timms_resnets(zero: bool) -> None:
    recipe = find_recipe("demo")
    hyper = dataclasses.replace(recipe.hyper, zero_init_last=zero)
    network = build_network(dataclasses.replace(recipe, model="resnet18", hyper=hyper), 3)
    weight = network.layer1[0].bn2.weight  # type: ignore[union-attr,index]
    assert torch.equal(weight, torch.zeros(64) if zero else torch.ones(64))  # type: ignore[arg-type]


def test_other_networks_are_told_nothing() -> None:
    recipe = find_recipe("demo")
    for model in ("resnet32", "digits_net", "convnext_atto"):
        assert isinstance(build_network(dataclasses.replace(recipe, model=model), 3), nn.Module)


def test_weights_that_do_not_fit_are_explained() -> None:
    network, other = build_model("digits_net", 3), build_model("digits_net", 4)
    take_weights(network, build_model("digits_net", 3).state_dict(), "demo/baseline")
    with pytest.raises(ValueError, match=r"demo/baseline does not fit this run's DigitsNet"):
        take_weights(network, other.state_dict(), "demo/baseline")


def test_convolutions_that_are_left_as_they_are() -> None:
    recipe = dataclasses.replace(find_recipe("demo"), model="resnet18", convolutions="last_block")
    network = build_network(recipe, 3)
    assert not network.conv1.weight.requires_grad and network.fc.weight.requires_grad  # type: ignore[union-attr]


def test_weights_that_a_recipe_names(tmp_path: Path) -> None:
    recipe = find_recipe("demo")
    said: list[str] = []
    network = build_model("digits_net", 3)
    before = {key: value.clone() for key, value in network.state_dict().items()}
    take_given_weights(network, recipe, said.append)
    assert given_weights(recipe) is None and not said
    file = tmp_path / "w.pth"
    torch.save(build_model("digits_net", 5).state_dict(), file)
    named = dataclasses.replace(recipe, weights=str(file))
    assert given_weights(named) == file
    take_given_weights(network, named, said.append)
    assert len(said) == 1 and "without its classifier" in said[0]
    key = next(iter(before))
    assert not torch.equal(before[key], network.state_dict()[key])
    needy = dataclasses.replace(named, method="tau_norm")
    with pytest.raises(ValueError, match="tau_norm works on a trained classifier"):
        take_given_weights(network, needy, said.append)
    assert given_weights(dataclasses.replace(recipe, weights="timm")) is None
