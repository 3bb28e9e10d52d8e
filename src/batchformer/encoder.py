"""The encoder as functions: post-norm layers whose sequence axis is the batch axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, overload

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from batchformer.attention import Attend, attention, inspectable_attention


class EncoderWeights(NamedTuple):
    """The twelve tensors of a post-norm layer, named as in ``nn.TransformerEncoderLayer``."""

    in_proj_weight: Tensor
    in_proj_bias: Tensor
    out_proj_weight: Tensor
    out_proj_bias: Tensor
    linear1_weight: Tensor
    linear1_bias: Tensor
    linear2_weight: Tensor
    linear2_bias: Tensor
    norm1_weight: Tensor
    norm1_bias: Tensor
    norm2_weight: Tensor
    norm2_bias: Tensor

    @classmethod
    def of(cls, layer: nn.TransformerEncoderLayer) -> EncoderWeights:
        """Read them from a stock layer."""
        mha = layer.self_attn
        parts: tuple[Any, ...] = (mha.out_proj, layer.linear1, layer.linear2)
        parts += (layer.norm1, layer.norm2)
        rest = (tensor for part in parts for tensor in (part.weight, part.bias))
        return cls(mha.in_proj_weight, mha.in_proj_bias, *rest)


def encoder_layer(
    x: Tensor,
    w: EncoderWeights,
    *,
    heads: int,
    dropout: float = 0.0,
    attend: Attend = "batch",
    return_weights: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """One post-norm layer, ``LN(x + attention(x))`` then ``LN(x + feed_forward(x))``.

    Dropout acts in four places: on the attention weights, after the attention, inside the
    feed-forward and after it.

    Args:
        x: ``(L, N, C)``: the N samples attend to one another, separately at each of L positions.

    Returns:
        ``(L, N, C)``, and the attention weights ``(L, heads, N, N)`` or None.
    """
    length, n, channels = x.shape
    qkv = F.linear(x, w.in_proj_weight, w.in_proj_bias)
    q, k, v = qkv.view(length, n, 3, heads, channels // heads).permute(2, 0, 3, 1, 4)
    weights = None
    if return_weights:
        mixed, weights = inspectable_attention(q, k, v, dropout=dropout, attend=attend)
    else:
        mixed = attention(q, k, v, dropout=dropout, attend=attend)
    mixed = mixed.transpose(1, 2).reshape(length, n, channels)
    mixed = F.linear(mixed, w.out_proj_weight, w.out_proj_bias)
    x = F.layer_norm(x + F.dropout(mixed, dropout), (channels,), w.norm1_weight, w.norm1_bias)
    hidden = F.dropout(F.relu(F.linear(x, w.linear1_weight, w.linear1_bias)), dropout)
    hidden = F.dropout(F.linear(hidden, w.linear2_weight, w.linear2_bias), dropout)
    return F.layer_norm(x + hidden, (channels,), w.norm2_weight, w.norm2_bias), weights


@overload
def batch_former(
    x: Tensor,
    weights: Sequence[EncoderWeights],
    *,
    heads: int = ...,
    dropout: float = ...,
    attend: Attend = ...,
    batch_axis: int = ...,
    channel_axis: int | None = ...,
    return_weights: Literal[False] = ...,
) -> Tensor: ...
@overload
def batch_former(
    x: Tensor,
    weights: Sequence[EncoderWeights],
    *,
    heads: int = ...,
    dropout: float = ...,
    attend: Attend = ...,
    batch_axis: int = ...,
    channel_axis: int | None = ...,
    return_weights: Literal[True],
) -> tuple[Tensor, Tensor]: ...
def batch_former(
    x: Tensor,
    weights: Sequence[EncoderWeights],
    *,
    heads: int = 4,
    dropout: float = 0.0,
    attend: Attend = "batch",
    batch_axis: int = 0,
    channel_axis: int | None = None,
    return_weights: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Encode samples by their relations to the other samples of the batch.

    Args:
        x: ``(N, C)``, ``(N, L, C)``, ``(N, C, H, W)``, or any layout the axes describe. Extra axes
            are positions: a position attends to the same position of the other samples.
        weights: one :class:`EncoderWeights` for each layer.
        heads: attention heads; must divide C.
        dropout: probability, in the four places of :func:`encoder_layer`.
        attend: ``"batch"``, or ``"self"`` for the control in which no sample sees another.
        batch_axis: the axis of the N samples.
        channel_axis: the axis of the C channels; by default the last for up to three axes and
            axis 1 beyond (images).
        return_weights: also return the attention weights ``(layers, L, heads, N, N)``.

    Returns:
        The mixed samples, in the shape and type of ``x``.

    >>> layer = nn.TransformerEncoderLayer(8, 4, dim_feedforward=8)
    >>> batch_former(torch.randn(5, 8), [EncoderWeights.of(layer)]).shape
    torch.Size([5, 8])
    """
    axes = batch_axis, default_channel_axis(x) if channel_axis is None else channel_axis
    moved = x.movedim(axes, (-2, -1))
    encoded = moved.reshape(-1, *moved.shape[-2:])
    recorded: list[Tensor] = []
    for w in weights:
        encoded, seen = encoder_layer(
            encoded, w, heads=heads, dropout=dropout, attend=attend, return_weights=return_weights
        )
        if seen is not None:
            recorded.append(seen)
    mixed = encoded.reshape(moved.shape).movedim((-2, -1), axes).to(x.dtype)
    return (mixed, torch.stack(recorded)) if return_weights else mixed


def default_channel_axis(x: Tensor) -> int:
    """Channels are last in ``(N, C)`` and ``(N, L, C)``, and axis 1 in image layouts."""
    return 1 if x.ndim > 3 else -1
