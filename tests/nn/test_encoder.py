"""The functions under the module, against stock layers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from batchformer import batch_former
from batchformer.nn.encoder import EncoderWeights, default_channel_axis


def stock_layer(dim: int = 8) -> nn.TransformerEncoderLayer:
    return nn.TransformerEncoderLayer(dim, 4, dim_feedforward=dim).eval()


def test_the_weights_are_the_layers_own_parameters() -> None:
    layer = stock_layer()
    weights = EncoderWeights.of(layer)
    assert {id(w) for w in weights} == {id(p) for p in layer.parameters()}
    assert weights.linear2_bias is layer.linear2.bias


def test_the_function_takes_the_weights_of_stock_layers() -> None:
    layers = [stock_layer() for _ in range(2)]
    x = torch.randn(5, 8)
    expected = x.unsqueeze(1)
    for layer in layers:
        expected = layer(expected)
    got, weights = batch_former(x, [EncoderWeights.of(la) for la in layers], return_weights=True)
    torch.testing.assert_close(got, expected.squeeze(1), atol=1e-5, rtol=1e-5)
    assert weights.shape == (2, 1, 4, 5, 5)


@pytest.mark.parametrize(("shape", "axis"), [((5, 8), -1), ((5, 3, 8), -1), ((5, 8, 2, 2), 1)])
def test_where_channels_are_by_default(shape: tuple[int, ...], axis: int) -> None:
    x = torch.randn(shape)
    assert default_channel_axis(x) == axis
    assert batch_former(x, [EncoderWeights.of(stock_layer())]).shape == shape


def test_exchange_in_one_process_is_the_same_function() -> None:
    layers = [EncoderWeights.of(nn.TransformerEncoderLayer(8, 4, 8).double()) for _ in range(2)]
    x = torch.randn(3, 5, 8, dtype=torch.float64)
    plain, weights = batch_former(x, layers, batch_axis=1, return_weights=True)
    got = batch_former(x, layers, batch_axis=1, exchange=True, return_weights=True)
    torch.testing.assert_close(got, (plain, weights))
    dropped = batch_former(x, layers, batch_axis=1, exchange=True, dropout=0.5)
    assert not torch.allclose(dropped, plain)
