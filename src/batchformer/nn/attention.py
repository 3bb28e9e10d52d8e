"""Attention over samples: softmax(q kᵀ / √D) v, where the sequence axis is the batch axis.

All paths compute the same function, with dropout on the weights. Sizes, type and device alone
decide which path is taken, never the data.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from batchformer.kernels.available import HALF, operators_work, unsupported_reason
from batchformer.nn.exchange import ON_WEIGHTS, AllRows, KeyedDropout, gather_rows

Attend = Literal["batch", "self"]
Path = Literal["explicit", "fused", "blockwise", "triton"]


#: Drops attention weights ``(L, heads, rows, N)``; their first row has the number ``first_row=``.
Drop = Callable[..., Tensor]

#: The most bytes of attention weights (all heads and positions, float32) on the explicit path.
EXPLICIT_BUDGET = 256 * 2**20
#: The same on a GPU, where other paths are faster beyond it: in float32 and in half precision.
EXPLICIT_BUDGET_CUDA, EXPLICIT_BUDGET_HALF = 32 * 2**20, 8 * 2**20
#: With fewer samples in half precision, the number of launches decides; the fused path has fewer.
EXPLICIT_SAMPLES_HALF = 64
#: Bytes of one block of weights on the blockwise path.
BLOCK_BUDGET = 64 * 2**20
#: The widest head for which torch's fused kernels are fast, and the alignment they need.
FUSED_WIDTH, FUSED_ALIGNMENT = 256, 8


def choose_path(
    length: int,
    heads: int,
    n: int,
    width: int,
    *,
    device: torch.device,
    dtype: torch.dtype,
    dropout: float,
    attend: Attend = "batch",
    kernels: bool = False,
    keys: int | None = None,
) -> Path:
    """The fastest exact path that stores no N x N weights beyond the budget.

    Args:
        length: positions L, which attend separately.
        heads: attention heads.
        n: samples N.
        width: channels of a head D.
        kernels: whether our own kernels can run.
        keys: samples attended to, if not N.

    >>> cpu = dict(device=torch.device("cpu"), dtype=torch.float32, dropout=0.5)
    >>> choose_path(1, 4, 128, 64, **cpu), choose_path(1, 4, 16384, 64, **cpu)
    ('explicit', 'blockwise')
    """
    stored = 4 * length * heads * n * (n if keys is None else keys)
    on_gpu = device.type == "cuda"
    # Fused kernels, torch's and ours, neither mask nor compute in float64.
    fusible = on_gpu and attend == "batch" and dtype != torch.float64
    fused = fusible and width <= FUSED_WIDTH and width % FUSED_ALIGNMENT == 0
    least, most = 0, EXPLICIT_BUDGET_CUDA if on_gpu else EXPLICIT_BUDGET
    if fused and dtype in HALF:
        least, most = EXPLICIT_SAMPLES_HALF, EXPLICIT_BUDGET_HALF
    if n >= least and stored <= most:
        return "explicit"
    if fused:
        return "fused"
    if fusible and kernels:
        return "triton"
    if attend == "batch" and device.type == "cpu" and not dropout:
        return "fused"  # with dropout torch's CPU kernel would store all weights
    return "explicit" if stored <= EXPLICIT_BUDGET else "blockwise"


def attention(
    qkv: Tensor,
    heads: int,
    *,
    dropout: float = 0.0,
    attend: Attend = "batch",
    path: Path | None = None,
    visible: Tensor | None = None,
) -> Tensor:
    """Exact attention by the path that :func:`choose_path` selects.

    Args:
        qkv: queries, keys and values side by side, ``(L, N, 3 C)``, or ``(N, 3 C)`` for a single
            position.
        heads: attention heads; must divide C.
        dropout: probability of dropping an attention weight.
        attend: ``"batch"``: every sample sees every sample; ``"self"``: each sees only itself.
        path: overrides :func:`choose_path`.
        visible: the samples that others may attend to, ``(N,)`` bool with at least one True, or
            ``(L, N)`` with at least one at each position. None means all. It has no effect with
            ``"self"``: a sample always sees itself.

    Returns:
        ``(L, N, C)`` or ``(N, C)``.
    """
    length, n, channels = len(qkv) if qkv.ndim == 3 else 1, qkv.shape[-2], qkv.shape[-1] // 3
    width, shape = channels // heads, (*qkv.shape[:-1], channels)
    if path is None:
        choose = partial(
            choose_path,
            *(length, heads, n, width),
            device=qkv.device,
            dtype=qkv.dtype,
            dropout=dropout,
            # Hidden samples need a path that can mask, as "self" does.
            attend=attend if visible is None else "self",
        )
        path = choose(kernels=qkv.is_cuda)
        if path == "triton" and not _kernels_work(qkv):
            path = choose(kernels=False)
    if path == "triton":
        return _triton(qkv.view(length, n, -1), heads, dropout).view(shape)
    if path == "explicit" and length == 1 and visible is None:
        # Three axes, because a product over four costs the host three times as much.
        q, k, v = qkv.view(n, 3, heads, width).permute(1, 2, 0, 3).unbind()
        mixed, _ = inspectable_attention(q, k, v, dropout=dropout, attend=attend)
        return mixed.transpose(0, 1).reshape(shape)
    if path == "fused" and qkv.is_cuda and not torch.compiler.is_compiling():
        q, k, v = _SplitHeads.apply(qkv, heads)
    else:
        q, k, v = split_heads(qkv, heads)
    if path == "fused":
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout)
    elif path == "blockwise":
        mixed = blockwise_attention(q, k, v, dropout=dropout, attend=attend, visible=visible)
    else:
        mixed, _ = inspectable_attention(q, k, v, dropout=dropout, attend=attend, visible=visible)
    return mixed.transpose(1, 2).reshape(shape)


def split_heads(qkv: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Split ``(L, N, 3 C)`` into queries, keys and values, ``(L, heads, N, D)`` each.

    L is 1 for ``(N, 3 C)``.
    """
    length, n, width = len(qkv) if qkv.ndim == 3 else 1, qkv.shape[-2], qkv.shape[-1] // 3 // heads
    q, k, v = qkv.view(length, n, 3, heads, width).permute(2, 0, 3, 1, 4)
    return q, k, v


def inspectable_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    dropout: float = 0.0,
    attend: Attend = "batch",
    first_row: int = 0,
    drop: Drop | None = None,
    visible: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The attention ``(L, heads, N, D)`` and its weights ``(L, heads, N, N)`` before dropout.

    For a single position all of these may lack the axis of positions.
    Each row of the weights sums to one. ``q`` may be a block of rows that begins at ``first_row``.
    ``drop`` replaces torch's dropout. ``visible`` is as in :func:`attention`.
    """
    product = torch.bmm if q.ndim == 3 else torch.matmul
    # Scaling q first keeps half-precision scores in range. The softmax is at least in float32.
    scores = product(q * q.shape[-1] ** -0.5, k.transpose(-2, -1))
    if attend == "self":
        # With a mask, dropout draws the same numbers as in attention to the batch.
        others = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device)
        others = others.triu(first_row + 1) | others.tril(first_row - 1)
        scores = scores.masked_fill(others, -torch.inf)
    elif visible is not None:
        keys = visible if visible.ndim == 1 else visible[:, None, None]
        scores = scores.masked_fill(~keys, -torch.inf)
    precise = torch.float32 if scores.dtype in HALF else scores.dtype
    weights = torch.softmax(scores, -1, dtype=precise)
    if drop is None:
        kept = torch.dropout(weights, dropout, train=True)
    else:
        kept = drop(weights, first_row=first_row)
    return product(kept.to(v.dtype), v), weights


def blockwise_attention(
    q: Tensor, k: Tensor, v: Tensor, *, dropout: float = 0.0, **options: Any
) -> Tensor:
    """:func:`inspectable_attention` by blocks of rows, each recomputed in the backward pass."""
    from torch.utils.checkpoint import checkpoint  # late: it imports the compiler

    def block(q: Tensor, k: Tensor, v: Tensor, first_row: int) -> Tensor:
        return inspectable_attention(q, k, v, dropout=dropout, first_row=first_row, **options)[0]

    length, heads, n, _ = q.shape
    rows = max(BLOCK_BUDGET // (4 * length * heads * k.shape[-2]), 1)
    run = partial(checkpoint, block, use_reentrant=False, preserve_rng_state=dropout > 0)
    mixed = [run(q[..., start : start + rows, :], k, v, start) for start in range(0, n, rows)]
    return torch.cat(mixed, dim=-2)


def _kernels_work(x: Tensor) -> bool:
    """Whether the attention kernels can run on x, or be used as an operator in compiled code."""
    if not torch.compiler.is_compiling():
        return unsupported_reason(x) is None
    return operators_work(x.device)


def _triton(qkv: Tensor, heads: int, dropout: float) -> Tensor:
    from batchformer.kernels.dropout import draw_seeds

    if torch.compiler.is_compiling():
        from batchformer.kernels.operator import sample_attention

        def attend(qkv: Tensor, seed: Tensor) -> Tensor:
            mixed: Tensor = sample_attention(qkv, seed, heads, dropout)[0]
            return mixed
    else:
        from batchformer.kernels.attention import SampleAttention

        def attend(qkv: Tensor, seed: Tensor) -> Tensor:
            mixed: Tensor = SampleAttention.apply(qkv, heads, dropout, seed)
            return mixed

    seeds = draw_seeds(len(qkv), qkv.device)
    if len(qkv) == 1:  # a view; torch.stack would copy
        return attend(qkv.flatten(0, 1), seeds).unsqueeze(0)
    positions = enumerate(qkv.contiguous())
    return torch.stack([attend(rows, seeds[index : index + 1]) for index, rows in positions])


class _SplitHeads(torch.autograd.Function):
    """:func:`split_heads` whose backward pass writes the three gradients into one tensor."""

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
        ctx.heads, ctx.shape = heads, qkv.shape
        return split_heads(qkv, heads)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        joined = gradients[0].new_empty(ctx.shape)
        for part, gradient in zip(split_heads(joined, ctx.heads), gradients, strict=True):
            part.copy_(gradient)
        return joined, None


def attention_across(
    qkv: Tensor,
    heads: int,
    rows: AllRows,
    dropout: KeyedDropout,
    *,
    attend: Attend = "batch",
    return_weights: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Exact attention of this rank's N samples over the M samples of all ranks.

    Only keys and values are sent: 2 C numbers per row and position, from every rank to every
    other, and as many gradients back. With ``attend="self"`` nothing is sent. ``qkv`` is as in
    :func:`attention`, ``rows`` comes from :func:`~batchformer.nn.exchange.agree_on_rows`.

    Returns:
        ``(L, N, C)``, and the weights ``(L, heads, N, M)`` or None.
    """
    length, n, channels = qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3
    width = channels // heads
    queries, others = torch.split(qkv, [channels, 2 * channels], dim=-1)
    first_column = rows.own.start
    if attend == "batch":
        others = others.transpose(0, 1).contiguous()
        others = gather_rows(others, rows.counts, rows.group).transpose(0, 1)
        first_column = 0
    q = queries.reshape(length, n, heads, width).transpose(1, 2)
    k, v = others.reshape(*others.shape[:2], 2, heads, width).permute(2, 0, 3, 1, 4)
    drop = partial(dropout, place=ON_WEIGHTS, first_column=first_column)
    if return_weights:
        mixed, weights = inspectable_attention(q, k, v, attend=attend, drop=drop)
        after = rows.total - first_column - weights.shape[-1]
        weights = F.pad(weights, (first_column, after))
        return mixed.transpose(1, 2).reshape(length, n, channels), weights
    path: Path
    if dropout.probability:  # keyed masks are int64, and no fused kernel supports them
        stored = 4 * length * heads * n * k.shape[-2]
        path = "explicit" if stored <= BLOCK_BUDGET else "blockwise"
    else:
        path = choose_path(
            *(length, heads, n, width),
            device=qkv.device,
            dtype=qkv.dtype,
            dropout=0.0,
            attend=attend,
            keys=k.shape[-2],
        )
    if path == "fused":
        mixed = F.scaled_dot_product_attention(q, k, v)
    elif path == "blockwise":
        mixed = blockwise_attention(q, k, v, attend=attend, drop=drop)
    else:
        mixed = inspectable_attention(q, k, v, attend=attend, drop=drop)[0]
    return mixed.transpose(1, 2).reshape(length, n, channels), None
