"""The encoder: post-norm Transformer layers whose sequence axis is the batch axis."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, get_args, overload

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from batchformer.nn.arguments import choices, real_numbers, switches, whole_numbers
from batchformer.nn.attention import (
    Attend,
    attention,
    attention_across,
    inspectable_attention,
    split_heads,
)
from batchformer.nn.exchange import (
    AFTER_ATTENTION,
    AFTER_FEED_FORWARD,
    IN_FEED_FORWARD,
    AllRows,
    KeyedDropout,
    agree_on_rows,
)
from batchformer.torch_private import HOOKS


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
        mha: Any = layer.self_attn
        parts = (mha.out_proj, layer.linear1, layer.linear2, layer.norm1, layer.norm2)
        pairs = (tensor for part in parts for tensor in (part.weight, part.bias))
        return cls(mha.in_proj_weight, mha.in_proj_bias, *pairs)


class LayerSteps(NamedTuple):
    """The six steps of a layer that have weights, each a function of one tensor."""

    in_proj: Callable[[Tensor], Tensor]
    out_proj: Callable[[Tensor], Tensor]
    linear1: Callable[[Tensor], Tensor]
    linear2: Callable[[Tensor], Tensor]
    norm1: Callable[[Tensor], Tensor]
    norm2: Callable[[Tensor], Tensor]

    @classmethod
    def of(cls, w: EncoderWeights) -> LayerSteps:
        """Torch's functions with these weights."""
        norm = partial(torch.layer_norm, normalized_shape=w.norm1_weight.shape)
        return cls(
            partial(F.linear, weight=w.in_proj_weight, bias=w.in_proj_bias),
            partial(F.linear, weight=w.out_proj_weight, bias=w.out_proj_bias),
            partial(F.linear, weight=w.linear1_weight, bias=w.linear1_bias),
            partial(F.linear, weight=w.linear2_weight, bias=w.linear2_bias),
            partial(norm, weight=w.norm1_weight, bias=w.norm1_bias),
            partial(norm, weight=w.norm2_weight, bias=w.norm2_bias),
        )

    @classmethod
    def calling(cls, layer: nn.TransformerEncoderLayer) -> LayerSteps:
        """The submodules of a layer."""
        mha = layer.self_attn
        in_proj = partial(F.linear, weight=mha.in_proj_weight, bias=mha.in_proj_bias)
        parts = (mha.out_proj, layer.linear1, layer.linear2, layer.norm1, layer.norm2)
        return cls(in_proj, *parts)


class EncoderLayer(nn.TransformerEncoderLayer):
    """The stock layer, whose forward is :func:`encoder_layer`.

    The forward calls the linear layers and the norms, which may be wrapped, replaced or hooked
    (LoRA, a quantised layer). It never calls the attention module and the dropouts;
    :func:`bypassed` finds those that were changed.
    """

    def forward(self, x: Tensor, **options: Any) -> Any:  # type: ignore[override]
        """:func:`encoder_layer` of ``(L, N, C)`` or ``(N, C)``, with its options."""
        return encoder_layer(x, LayerSteps.calling(self), **options)


def bypassed(model: nn.Module) -> list[str]:
    """Names of replaced or hooked parts of encoders that no forward pass calls.

    Their hooks never fire, and a module that replaces such a part gets no gradient.

    >>> layer = EncoderLayer(8, 4, 8)
    >>> _ = layer.self_attn.register_forward_hook(lambda *_: None)
    >>> bypassed(layer)
    ['self_attn']
    """
    return [
        f"{prefix}.{name}" if prefix else name
        for prefix, layer in model.named_modules()
        if isinstance(layer, EncoderLayer)
        for name, part in layer.named_modules()
        if name in ("self_attn", "dropout", "dropout1", "dropout2") and _changed(part)
    ]


def _changed(part: nn.Module) -> bool:
    """Whether calling a part may differ from calling the stock module."""
    own = vars(part)
    if type(part) not in (nn.MultiheadAttention, nn.Dropout) or "forward" in own:
        return True
    return any(own[name] for name in HOOKS)


def encoder_layer(
    x: Tensor,
    w: EncoderWeights | LayerSteps,
    *,
    heads: int,
    dropout: float = 0.0,
    attend: Attend = "batch",
    return_weights: bool = False,
    rows: AllRows | None = None,
    number: int = 0,
    visible: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """One post-norm layer, ``LN(x + attention(x))`` then ``LN(x + feed_forward(x))``.

    Dropout acts in four places: on the attention weights, after the attention, inside the
    feed-forward and after it.

    Args:
        x: ``(L, N, C)``: the N samples attend to one another, separately at each of L positions.
            ``(N, C)`` is a single position; not with ``return_weights``, ``rows`` or ``visible``.
        w: the weights, or the steps themselves.
        rows: if given, attend to the M samples of all ranks, with dropout keyed by ``rows.seed``.
        number: the number of this layer, one of the keys of that dropout.
        visible: ``(N,)`` or ``(L, N)`` bool, the samples that others may attend to, as in
            :func:`~batchformer.nn.attention.attention`; not with ``rows``.

    Returns:
        The shape of x, and the attention weights ``(L, heads, N, N or M)`` or None.
    """
    step = LayerSteps.of(w) if isinstance(w, EncoderWeights) else w
    # A matrix product of (L N, C) costs the host half as much as one of (L, N, C).
    flat = x.flatten(0, 1) if x.ndim == 3 and rows is None else x
    qkv = step.in_proj(flat)
    qkv = qkv if flat is x else qkv.reshape(*x.shape[:2], -1)
    drops: list[Callable[[Tensor], Tensor]] = [partial(torch.dropout, p=dropout, train=True)] * 3
    weights = None
    if rows is not None:
        keyed = KeyedDropout(dropout, rows.seed, number, rows.own.start)
        places = AFTER_ATTENTION, IN_FEED_FORWARD, AFTER_FEED_FORWARD
        drops = [partial(keyed, place=place) for place in places]
        mixed, weights = attention_across(
            qkv, heads, rows, keyed, attend=attend, return_weights=return_weights
        )
    elif return_weights:
        q, k, v = split_heads(qkv, heads)
        mixed, weights = inspectable_attention(
            q, k, v, dropout=dropout, attend=attend, visible=visible
        )
        mixed = mixed.transpose(1, 2).reshape(x.shape)
    else:
        mixed = attention(qkv, heads, dropout=dropout, attend=attend, visible=visible)
    mixed = mixed if flat is x else mixed.reshape(flat.shape)
    middle = step.norm1(flat + drops[0](step.out_proj(mixed)))
    hidden = drops[1](torch.relu(step.linear1(middle)))
    out = step.norm2(middle + drops[2](step.linear2(hidden)))
    return out if flat is x else out.reshape(x.shape), weights


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
    exchange: bool = ...,
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
    exchange: bool = ...,
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
    exchange: bool = False,
    return_weights: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Encode samples by their relations to the other samples of the batch.

    Args:
        x: ``(N, C)``, ``(N, L, C)``, ``(N, C, H, W)``, or any layout the axes describe. Extra axes
            are positions. Each position attends to the same position of the other samples.
        weights: one :class:`EncoderWeights` for each layer.
        heads: attention heads; must divide C.
        dropout: probability, in the four places of :func:`encoder_layer`.
        attend: ``"batch"``, or ``"self"`` for the control in which no sample sees another.
        batch_axis: the axis of the N samples.
        channel_axis: the axis of the C channels; by default the last for up to three axes and
            axis 1 beyond (images).
        exchange: attend to the samples of all ranks, each of which calls this; see
            :class:`~batchformer.nn.module.BatchFormer`.
        return_weights: also return the attention weights ``(layers, L, heads, N, N)``; with
            ``exchange`` ``(layers, L, heads, N, M)`` for M samples of all ranks.

    Returns:
        The mixed samples, in the shape and type of ``x``.

    >>> layer = nn.TransformerEncoderLayer(8, 4, dim_feedforward=8)
    >>> batch_former(torch.randn(5, 8), [EncoderWeights.of(layer)]).shape
    torch.Size([5, 8])
    """
    where = "batch_former()"
    several = isinstance(weights, Iterable) and not isinstance(weights, EncoderWeights)
    stack = list(weights) if several else []
    if not stack or not all(isinstance(w, (EncoderWeights, EncoderLayer)) for w in stack):
        raise TypeError(
            f"{where}: weights= is a list with one EncoderWeights for each layer, such as "
            f"[EncoderWeights.of(layer)] for an nn.TransformerEncoderLayer."
        )
    axis = 0 if channel_axis is None else channel_axis
    whole_numbers(where, None, batch_axis=batch_axis, channel_axis=axis)
    switches(where, exchange=exchange, return_weights=return_weights)
    first = stack[0] if isinstance(stack[0], EncoderWeights) else EncoderWeights.of(stack[0])
    width = first.in_proj_weight.shape[1]
    check_options(where, width, heads, dropout, attend)
    axes = layout(x, width, batch_axis, channel_axis)
    mixed, attention_weights = encode(
        x,
        stack,
        axes,
        heads=heads,
        dropout=dropout,
        attend=attend,
        return_weights=return_weights,
        rows=rows_of_all_ranks(x, axes, dropout) if exchange else None,
    )
    return (mixed, torch.stack(attention_weights)) if return_weights else mixed


def rows_of_all_ranks(
    x: Tensor, axes: tuple[int, int], dropout: float, group: Any = None
) -> AllRows:
    """:func:`~batchformer.nn.exchange.agree_on_rows` for x with these batch and channel axes."""
    positions = math.prod(x.movedim(axes, (-2, -1)).shape[:-2])
    return agree_on_rows(x.shape[axes[0]], positions, x.device, draw=dropout > 0, group=group)


def encode(
    x: Tensor,
    weights: Sequence[EncoderWeights | EncoderLayer],
    axes: tuple[int, int],
    *,
    heads: int,
    dropout: float,
    attend: Attend,
    return_weights: bool,
    rows: AllRows | None,
    visible: Tensor | None = None,
) -> tuple[Tensor, list[Tensor]]:
    """:func:`batch_former` over ``rows`` of all ranks, or over x alone if None.

    Layers are called as modules. ``visible`` is a bool tensor of the shape of x without its
    channels: the samples that others may attend to, at each position. At a position where no sample
    is visible, all are.
    """
    # For (N, C), views cost the host as much as operations, so none are made.
    plain = rows is None and visible is None and not return_weights
    single = x.ndim == 2 and axes in ((0, -1), (0, 1)) and plain
    moved = x if single else x.movedim(axes, (-2, -1))
    positions = math.prod(moved.shape[:-2])
    encoded = x if single else moved.reshape(positions, *moved.shape[-2:])
    if visible is not None and visible.ndim > 1:
        moved_mask = visible.unsqueeze(axes[1] % x.ndim).movedim(axes, (-2, -1))
        visible = moved_mask.reshape(positions, -1)
        visible = visible | ~visible.any(1, keepdim=True)
    attention_weights: list[Tensor] = []
    for number, w in enumerate(weights):
        run = partial(encoder_layer, w=w) if isinstance(w, EncoderWeights) else w
        encoded, layer_weights = run(
            encoded,
            heads=heads,
            dropout=dropout,
            attend=attend,
            return_weights=return_weights,
            rows=rows,
            number=number,
            visible=visible,
        )
        if layer_weights is not None:
            attention_weights.append(layer_weights)
    mixed = encoded if single else encoded.reshape(moved.shape).movedim((-2, -1), axes)
    return mixed.to(x.dtype), attention_weights


def default_channel_axis(x: Tensor) -> int:
    """Channels are last in ``(N, C)`` and ``(N, L, C)``, and axis 1 in image layouts."""
    return 1 if x.ndim > 3 else -1


def check_options(where: str, width: int, heads: int, dropout: float, attend: Attend) -> None:
    """Refuse options with which no encoder of this width can be built."""
    whole_numbers(where, 1, heads=heads)
    if width % heads:
        fitting = ", ".join(str(h) for h in range(1, min(width, 64) + 1) if width % h == 0)
        raise ValueError(
            f"{where}: {heads} heads do not divide dim={width}; use heads= one of {fitting}."
        )
    choices(where, get_args(Attend), attend=attend)
    real_numbers(where, dropout=dropout)
    if dropout >= 1.0:
        raise ValueError(f"{where}: dropout={dropout} drops everything; use less than 1.")


def layout(x: Tensor, width: int, batch_axis: int, channel_axis: int | None) -> tuple[int, int]:
    """The axes of the samples and of the channels of x.

    Raises:
        ValueError: x lacks one of these axes, or does not have ``width`` channels.
    """
    if not isinstance(x, Tensor):
        raise TypeError(
            f"BatchFormer takes a tensor of features, (N, C) or with positions, not "
            f"{type(x).__name__}."
        )
    n, axis = x.ndim, default_channel_axis(x) if channel_axis is None else channel_axis
    exist = n > 1 and -n <= batch_axis < n and -n <= axis < n
    if not exist or x.shape[axis] != width or not (batch_axis - axis) % n:
        raise ValueError(
            f"BatchFormer(dim={width}) expects {width} channels on axis {axis} and samples on axis "
            f"{batch_axis}, but the input has shape {tuple(x.shape)}. Set channel_axis (-1 for "
            f"channels-last) and batch_axis (1 for (L, N, C)), or build it with the dim of the "
            f"features."
        )
    return batch_axis, axis
