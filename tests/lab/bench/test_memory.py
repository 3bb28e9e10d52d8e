"""Bytes kept for the backward pass."""

from __future__ import annotations

import torch
from torch import nn

from batchformer.lab.bench.attention import Layer
from batchformer.lab.bench.measure import release, saved_bytes


def test_a_storage_counts_once_and_what_exists_anyway_not_at_all() -> None:
    x, w = torch.randn(16, 8, requires_grad=True), torch.randn(8, 8, requires_grad=True)

    def forward() -> torch.Tensor:
        hidden = (x @ w).relu()  # saved by relu, and again as an input of the next product
        return hidden.t() @ hidden

    assert saved_bytes(forward, [x, w]) == 4 * 16 * 8
    assert saved_bytes(forward, [x]) == 4 * 16 * 8 + 4 * 8 * 8


def test_the_layer_stores_at_least_its_weights_of_attention() -> None:
    layer = Layer(64, 16, torch.device("cpu"), torch.float32)
    n, heads = 64, 4
    assert saved_bytes(layer.forward_ours, layer.given) >= 4 * heads * n * n
    blockwise = saved_bytes(lambda: layer.forward_by("blockwise"), layer.given)
    assert blockwise < 4 * heads * n * n


def test_nothing_is_saved_where_nothing_is_trained() -> None:
    module = nn.Linear(4, 4).requires_grad_(False)
    assert saved_bytes(lambda: module(torch.randn(2, 4)), []) == 0
    release(torch.device("cpu"))
