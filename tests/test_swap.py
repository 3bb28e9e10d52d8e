"""Changing a module's forward by its class, and changing it back."""

from __future__ import annotations

import copy
import io

import torch
from torch import Tensor, nn

from batchformer.swap import Swapped, swap, unswap


class Doubling(Swapped):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def test_the_object_stays_and_its_forward_changes() -> None:
    layer = nn.Linear(3, 2)
    x = torch.randn(4, 3)
    plain, keys, weight = layer(x), list(layer.state_dict()), layer.weight
    swap(layer, Doubling)
    assert isinstance(layer, nn.Linear) and layer.weight is weight
    assert list(layer.state_dict()) == keys
    assert torch.equal(layer(x), 2 * plain)
    unswap(layer)
    assert type(layer) is nn.Linear and torch.equal(layer(x), plain)
    unswap(layer)  # nothing to undo is not an error
    assert type(layer) is nn.Linear


def test_copies_and_pickles_keep_the_change() -> None:
    layer = nn.Linear(3, 2)
    swap(layer, Doubling)
    x = torch.randn(4, 3)
    twin = copy.deepcopy(layer)
    assert torch.equal(twin(x), layer(x)) and twin.weight is not layer.weight
    buffer = io.BytesIO()
    torch.save(layer, buffer)
    buffer.seek(0)
    assert torch.equal(torch.load(buffer, weights_only=False)(x), layer(x))
    unswap(twin)
    assert type(twin) is nn.Linear and type(layer) is not nn.Linear
