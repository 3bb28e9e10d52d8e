"""Changing a module's forward by its class, and changing it back."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm
from torch.nn.utils.parametrize import remove_parametrizations

from batchformer.plug.insertion import Swapped, add_mixin, remove_mixin


class Doubling(Swapped):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def test_the_object_stays_and_its_forward_changes() -> None:
    layer = nn.Linear(3, 2)
    x = torch.randn(4, 3)
    plain, keys, weight = layer(x), list(layer.state_dict()), layer.weight
    add_mixin(layer, Doubling)
    assert isinstance(layer, nn.Linear) and layer.weight is weight
    assert list(layer.state_dict()) == keys
    assert torch.equal(layer(x), 2 * plain)
    remove_mixin(layer, Doubling)
    assert type(layer) is nn.Linear and torch.equal(layer(x), plain)
    remove_mixin(layer, Doubling)  # nothing to undo is not an error
    assert type(layer) is nn.Linear


class Negating(Swapped):
    def forward(self, x: Tensor) -> Tensor:
        return -super().forward(x)


@pytest.mark.parametrize("order", [(Doubling, Negating), (Negating, Doubling)])
def test_each_mixin_is_taken_away_without_the_others(order: tuple[type[Swapped], ...]) -> None:
    layer, x = nn.Linear(3, 2), torch.randn(4, 3)
    plain = layer(x)
    for mixin in order:
        add_mixin(layer, mixin)
    buffer = io.BytesIO()
    torch.save(layer, buffer)
    buffer.seek(0)
    assert torch.equal(torch.load(buffer, weights_only=False)(x), -2 * plain)
    remove_mixin(layer, Doubling)
    assert torch.equal(layer(x), -plain)
    remove_mixin(layer, Negating)
    assert type(layer) is nn.Linear and torch.equal(layer(x), plain)


@pytest.mark.parametrize("first", ["parametrization", "mixin"])
@pytest.mark.parametrize("gone", ["parametrization", "mixin"])
def test_parametrizations_and_mixins_are_taken_away_in_either_order(first: str, gone: str) -> None:
    layer, x = nn.Linear(3, 2), torch.randn(4, 3)
    plain = layer(x)
    if first == "mixin":
        add_mixin(layer, Doubling)
    weight_norm(layer)
    generated = type(layer)
    if first == "parametrization":
        add_mixin(layer, Doubling)
    torch.testing.assert_close(layer(x), 2 * plain)
    torch.testing.assert_close(copy.deepcopy(layer)(x), 2 * plain)
    if gone == "mixin":
        remove_mixin(layer, Doubling)
        torch.testing.assert_close(layer(x), plain)
        assert type(layer).__name__ == "ParametrizedLinear"
        assert first == "mixin" or type(layer) is generated
        remove_parametrizations(layer, "weight")
    else:
        remove_parametrizations(layer, "weight")
        torch.testing.assert_close(layer(x), 2 * plain)
        remove_mixin(layer, Doubling)
    assert type(layer) is nn.Linear
    torch.testing.assert_close(layer(x), plain)


def test_copies_and_pickles_keep_the_change() -> None:
    layer = nn.Linear(3, 2)
    add_mixin(layer, Doubling)
    x = torch.randn(4, 3)
    twin = copy.deepcopy(layer)
    assert torch.equal(twin(x), layer(x)) and twin.weight is not layer.weight
    buffer = io.BytesIO()
    torch.save(layer, buffer)
    buffer.seek(0)
    assert torch.equal(torch.load(buffer, weights_only=False)(x), layer(x))
    remove_mixin(twin, Doubling)
    assert type(twin) is nn.Linear and type(layer) is not nn.Linear
