"""The encoder as functions: post-norm layers whose sequence axis is the batch axis."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, Literal, NamedTuple, overload

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from batchformer.kernels.available import unsupported_reason
from batchformer.kernels.small_layer import PLACES, obstacle_to_small_layer
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

#: Elements of (L, N, C) from which one fused kernel is faster than torch's three or four.
FUSED_ELEMENTS = 2**20
#: Below this many multiplications (L N C²) half precision costs more in casts than it saves.
SMALL_WORK = 2**22


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


class Steps(NamedTuple):
    """The six steps of a layer that have weights, each a function of one tensor."""

    in_proj: Callable[[Tensor], Tensor]
    out_proj: Callable[[Tensor], Tensor]
    linear1: Callable[[Tensor], Tensor]
    linear2: Callable[[Tensor], Tensor]
    norm1: Callable[[Tensor], Tensor]
    norm2: Callable[[Tensor], Tensor]

    @classmethod
    def of(cls, w: EncoderWeights) -> Steps:
        """Torch's functions with these weights."""
        norm = partial(F.layer_norm, normalized_shape=w.norm1_weight.shape)
        return cls(
            partial(F.linear, weight=w.in_proj_weight, bias=w.in_proj_bias),
            partial(F.linear, weight=w.out_proj_weight, bias=w.out_proj_bias),
            partial(F.linear, weight=w.linear1_weight, bias=w.linear1_bias),
            partial(F.linear, weight=w.linear2_weight, bias=w.linear2_bias),
            partial(norm, weight=w.norm1_weight, bias=w.norm1_bias),
            partial(norm, weight=w.norm2_weight, bias=w.norm2_bias),
        )

    @classmethod
    def calling(cls, layer: nn.TransformerEncoderLayer) -> Steps:
        """The modules of a layer, called as modules."""
        mha = layer.self_attn
        in_proj = partial(F.linear, weight=mha.in_proj_weight, bias=mha.in_proj_bias)
        parts = (mha.out_proj, layer.linear1, layer.linear2, layer.norm1, layer.norm2)
        return cls(in_proj, *parts)


#: Parts of a layer that are called where reading their weights would not do.
CALLED = ("self_attn.out_proj", "linear1", "linear2", "norm1", "norm2")


class EncoderLayer(nn.TransformerEncoderLayer):
    """The stock layer, whose forward is :func:`encoder_layer`.

    Weights are read, so that kernels can take them. A linear or a norm that was wrapped, replaced
    or hooked (LoRA, a quantised layer) is called instead. Attention itself and the dropouts are
    never called; :func:`bypassed` tells where that matters.
    """

    def forward(self, x: Tensor, **options: Any) -> Any:  # type: ignore[override]
        """``(L, N, C)``, with the options of :func:`encoder_layer`, to what that returns."""
        w = Steps.calling(self) if self.changed() else EncoderWeights.of(self)
        return encoder_layer(x, w, **options)

    def changed(self) -> bool:
        """Whether a part has to be called."""
        return any(_changed(self.get_submodule(name)) for name in CALLED)


def bypassed(model: nn.Module) -> list[str]:
    """Names of parts of encoders in a model that were replaced or hooked and are never called.

    They act on no pass: hooks inside never fire, and what replaces the part gets no gradient.

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


_STOCK = (
    nn.Linear,
    NonDynamicallyQuantizableLinear,
    nn.LayerNorm,
    nn.MultiheadAttention,
    nn.Dropout,
)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def _changed(part: nn.Module) -> bool:
    """Whether calling a part does something else than the stock module's function."""
    hooked = any(getattr(part, name) for name in _HOOKS)
    return type(part) not in _STOCK or hooked or "forward" in part.__dict__


def encoder_layer(
    x: Tensor,
    w: EncoderWeights | Steps,
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
        w: the weights, or the steps themselves, for which there are no kernels.
        rows: if given, they attend to the M samples of all ranks, and dropout is keyed by it.
        number: of this layer, which dropout is keyed by too.
        visible: ``(N,)`` bool, which samples others may attend to, as in
            :func:`~batchformer.nn.attention.attention`; not with ``rows``.

    Returns:
        ``(L, N, C)``, and the attention weights ``(L, heads, N, N or M)`` or None.
    """
    fused = rows is None and visible is None and not return_weights
    if isinstance(w, EncoderWeights):
        step = Steps.of(w)
        if fused and _fits_one_program(x, w, heads):
            return _small_layer(x, w, heads, dropout, attend), None
    else:
        step = w
    qkv = step.in_proj(x)
    drops = [partial(F.dropout, p=dropout)] * 3
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
    large = x.numel() >= FUSED_ELEMENTS and x.dtype != torch.float64
    if rows is None and large and isinstance(w, EncoderWeights) and _plain(x, w):
        return _after_attention_fused(x, mixed, w, dropout), weights
    x = step.norm1(x + drops[0](step.out_proj(mixed)))
    hidden = drops[1](F.relu(step.linear1(x)))
    return step.norm2(x + drops[2](step.linear2(hidden))), weights


def _plain(x: Tensor, w: EncoderWeights) -> bool:
    """Whether our kernels can read x and the weights."""
    return unsupported_reason(x) is None and all(unsupported_reason(tensor) is None for tensor in w)


def _fits_one_program(x: Tensor, w: EncoderWeights, heads: int) -> bool:
    """Whether channels are so few that a program holds all those of some samples."""
    square = w.linear1_weight.shape == w.linear2_weight.shape == (x.shape[-1],) * 2
    return square and obstacle_to_small_layer(x, heads) is None and _plain(x, w)


def _small_layer(
    x: Tensor, w: EncoderWeights, heads: int, dropout: float, attend: Attend
) -> Tensor:
    """The whole layer in a few launches; its products are in the type that autocast asks for."""
    from batchformer.kernels.dropout import draw_seeds
    from batchformer.kernels.small_layer import SmallLayer

    cast = torch.is_autocast_enabled(x.device.type)
    dtype = torch.get_autocast_dtype(x.device.type) if cast else x.dtype
    seeds = draw_seeds(PLACES, x.device)
    out: Tensor = SmallLayer.apply(x, *w, heads, dropout, attend == "self", seeds, dtype)
    return out


def _after_attention_fused(x: Tensor, mixed: Tensor, w: EncoderWeights, dropout: float) -> Tensor:
    """The same from the attention on, where all between two matrix products is one kernel."""
    from batchformer.kernels.dropout import draw_seeds
    from batchformer.kernels.relu_dropout import ReluDropout
    from batchformer.kernels.residual_norm import ResidualNorm

    # As torch's own layer norm, which autocast runs, and leaves, in float32.
    dtype = torch.float32 if torch.is_autocast_enabled(x.device.type) else x.dtype
    first, second, third = torch.split(draw_seeds(3, x.device), 1)
    rows, branch = x.flatten(0, 1), F.linear(mixed.flatten(0, 1), w.out_proj_weight)
    norm = w.norm1_weight, w.norm1_bias
    rows = ResidualNorm.apply(rows, branch, w.out_proj_bias, *norm, dropout, first, dtype)
    hidden = F.linear(rows, w.linear1_weight)
    hidden = ReluDropout.apply(hidden, w.linear1_bias, dropout, second)
    branch, norm = F.linear(hidden, w.linear2_weight), (w.norm2_weight, w.norm2_bias)
    rows = ResidualNorm.apply(rows, branch, w.linear2_bias, *norm, dropout, third, dtype)
    return torch.reshape(rows, x.shape)


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
            are positions: a position attends to the same position of the other samples.
        weights: one :class:`EncoderWeights` for each layer.
        heads: attention heads; must divide C.
        dropout: probability, in the four places of :func:`encoder_layer`.
        attend: ``"batch"``, or ``"self"`` for the control in which no sample sees another.
        batch_axis: the axis of the N samples.
        channel_axis: the axis of the C channels; by default the last for up to three axes and
            axis 1 beyond (images).
        exchange: attend to the samples of all ranks of the process group, each of which calls
            this; see :class:`~batchformer.nn.module.BatchFormer`.
        return_weights: also return the attention weights ``(layers, L, heads, N, N)``; with
            ``exchange`` ``(layers, L, heads, N, M)`` for M samples of all ranks.

    Returns:
        The mixed samples, in the shape and type of ``x``.

    >>> layer = nn.TransformerEncoderLayer(8, 4, dim_feedforward=8)
    >>> batch_former(torch.randn(5, 8), [EncoderWeights.of(layer)]).shape
    torch.Size([5, 8])
    """
    axes = batch_axis, default_channel_axis(x) if channel_axis is None else channel_axis
    mixed, recorded = encode(
        x,
        weights,
        axes,
        heads=heads,
        dropout=dropout,
        attend=attend,
        return_weights=return_weights,
        rows=meet_all(x, axes, dropout) if exchange else None,
    )
    return (mixed, torch.stack(recorded)) if return_weights else mixed


def meet_all(x: Tensor, axes: tuple[int, int], dropout: float, group: Any = None) -> AllRows:
    """Meet the rows of all ranks, of x with its samples and channels on these axes."""
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
    """:func:`batch_former` among rows that have met already, or those of x alone.

    Layers are called as modules, weights as they are. ``visible`` is as in :func:`encoder_layer`.
    """
    moved = x.movedim(axes, (-2, -1))
    positions = math.prod(moved.shape[:-2])
    encoded = moved.reshape(positions, *moved.shape[-2:])
    recorded: list[Tensor] = []
    # The casts of autocast cost a small encoder more than they save, unless a kernel does them.
    # The rows of all ranks decide: all must send keys and values of one type.
    n = encoded.shape[1] if rows is None else rows.total
    small = positions * n * encoded.shape[-1] ** 2 <= SMALL_WORK
    precise = small and _autocasts(x)
    if precise:
        first = weights[0]
        own = first if isinstance(first, EncoderWeights) else first.self_attn
        if isinstance(first, EncoderLayer) and not first.changed():
            first = EncoderWeights.of(first)
        if isinstance(first, EncoderWeights) and rows is None and visible is None:
            precise = not _fits_one_program(encoded, first, heads)
        if precise:
            encoded = encoded.to(own.in_proj_weight.dtype)
    with torch.autocast(x.device.type, enabled=False) if precise else nullcontext():
        for number, w in enumerate(weights):
            run = partial(encoder_layer, w=w) if isinstance(w, EncoderWeights) else w
            encoded, seen = run(
                encoded,
                heads=heads,
                dropout=dropout,
                attend=attend,
                return_weights=return_weights,
                rows=rows,
                number=number,
                visible=visible,
            )
            if seen is not None:
                recorded.append(seen)
    return encoded.reshape(moved.shape).movedim((-2, -1), axes).to(x.dtype), recorded


def _autocasts(x: Tensor) -> bool:
    # torch raises for the meta device, on which attach rehearses.
    return x.device.type != "meta" and torch.is_autocast_enabled(x.device.type)


def default_channel_axis(x: Tensor) -> int:
    """Channels are last in ``(N, C)`` and ``(N, L, C)``, and axis 1 in image layouts."""
    return 1 if x.ndim > 3 else -1
