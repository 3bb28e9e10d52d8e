"""The last layer of an encoder for one sample of each batch, the only one that is asked for.

The others need be keys and values alone: a whole layer would compute N rows to use one of them.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from batchformer.nn.attention import Attend
from batchformer.nn.encoder import EncoderWeights


def one_row(x: Tensor, rows: Tensor, w: EncoderWeights, *, heads: int, attend: Attend) -> Tensor:
    """Row ``rows[p]`` of what a layer makes of batch p, without dropout.

    Args:
        x: (P, N, C) batches.
        rows: (P,) which sample of each.
        w: the layer.
        heads: H.
        attend: as in :func:`~batchformer.nn.encoder.encoder_layer`.

    Returns:
        (P, C).
    """
    batches, samples, channels = x.shape
    each = torch.arange(batches, device=x.device)
    own = x[each, rows]
    query_weight, others_weight = w.in_proj_weight.split((channels, 2 * channels))  # type: ignore[no-untyped-call]
    query_bias, others_bias = w.in_proj_bias.split((channels, 2 * channels))  # type: ignore[no-untyped-call]
    query = F.linear(own, query_weight, query_bias).view(batches, heads, 1, -1)
    others = F.linear(x, others_weight, others_bias).view(batches, samples, 2, heads, -1)
    keys, values = others.permute(2, 0, 3, 1, 4)  # (P, H, N, D) each
    scores = (query * query.shape[-1] ** -0.5) @ keys.transpose(-2, -1)
    if attend == "self":
        itself = F.one_hot(rows, samples).bool().view(batches, 1, 1, samples)
        scores = scores.masked_fill(~itself, -torch.inf)
    mixed = (scores.softmax(-1) @ values).reshape(batches, channels)
    mixed = F.linear(mixed, w.out_proj_weight, w.out_proj_bias)
    row = F.layer_norm(own + mixed, (channels,), w.norm1_weight, w.norm1_bias)
    hidden = F.linear(F.relu(F.linear(row, w.linear1_weight, w.linear1_bias)), w.linear2_weight)
    return F.layer_norm(row + hidden + w.linear2_bias, (channels,), w.norm2_weight, w.norm2_bias)
