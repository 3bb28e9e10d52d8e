"""One row of a layer against all of them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from batchformer.insight.one_row import one_row
from batchformer.nn.attention import Attend
from batchformer.nn.encoder import EncoderWeights


@pytest.mark.parametrize("attend", ["batch", "self"])
@pytest.mark.parametrize("heads", [1, 3])
def test_a_row_is_that_of_torchs_own_layer(attend: Attend, heads: int) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(6, heads, 6, dtype=torch.float64).eval()
    for parameter in layer.parameters():
        parameter.data.add_(torch.randn_like(parameter))
    x, rows = torch.randn(5, 4, 6, dtype=torch.float64), torch.tensor([3, 0, 0, 2, 1])
    others = ~torch.eye(4, dtype=torch.bool) if attend == "self" else None
    # Torch has the samples of a sequence first, and our batches are its sequences.
    expected = layer(x.transpose(0, 1), src_mask=others).transpose(0, 1)[torch.arange(5), rows]
    got = one_row(x, rows, EncoderWeights.of(layer), heads=heads, attend=attend)
    torch.testing.assert_close(got, expected)
