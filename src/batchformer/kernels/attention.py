"""Attention over samples at the speed of matrix products, for heads of any width.

torch's matrix products compute scores, mixed values and gradients in blocks. The kernels here do
the softmax and the dropout between them in one pass over memory, in place. If all weights fit a
budget they are kept for the backward pass. If not, blocks are recomputed there, and memory grows
with the number of samples, not with its square.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from batchformer.kernels.dropout import ROWS, keep_tile, threshold_and_scale

# ---- Softmax with dropout on blocks of scores, forward and backward.
#
# Dropout is a function of (seed, row, column), so the backward pass can recompute a block with the
# same weights dropped.

LOG2_E = tl.constexpr(1.4426950408889634)
#: Columns of a tile and warps: forward, backward with kept weights, backward without.
FORWARD, BACKWARD_KEPT, BACKWARD = (512, 4), (512, 2), (512, 4)


@triton.jit
def _forward(
    scores,
    dropped,
    log_sum,
    seeds,
    n,
    rows,
    first_row,
    all_rows,
    row_stride,
    head_stride,
    threshold,
    scale,
    DROPOUT: tl.constexpr,
    KEEP_WEIGHTS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    head = tl.program_id(1).to(tl.int64)
    first = tl.program_id(0) * ROWS
    row = first + tl.arange(0, ROWS)[:, None]
    t = tl.arange(0, COLUMNS)[None, :]
    here = head * head_stride + row.to(tl.int64) * row_stride
    largest = tl.full((ROWS, COLUMNS), -float("inf"), tl.float32)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, n, COLUMNS):
        inside = (row < rows) & (start + t < n)
        s = tl.load(scores + here + start + t, mask=inside, other=-float("inf")).to(tl.float32)
        s *= LOG2_E
        above = tl.maximum(largest, s)
        # Columns beyond n stay at -inf, and -inf - (-inf) would be NaN.
        shift = tl.where(above == -float("inf"), 0.0, above)
        total = total * tl.exp2(largest - shift) + tl.exp2(s - shift)
        largest = above
    top = tl.max(largest, 1)
    top = tl.where(top == -float("inf"), 0.0, top)[:, None]
    log_total = top + tl.log2(tl.sum(total * tl.exp2(largest - top), 1))[:, None]
    position = head * all_rows + first_row + row
    tl.store(log_sum + position, log_total, mask=row < rows)
    seed = tl.load(seeds)
    for start in range(0, n, COLUMNS):
        inside = (row < rows) & (start + t < n)
        s = tl.load(scores + here + start + t, mask=inside, other=-float("inf")).to(tl.float32)
        p = tl.exp2(s * LOG2_E - log_total)
        if KEEP_WEIGHTS:
            tl.store(scores + here + start + t, p.to(scores.dtype.element_ty), mask=inside)
        if DROPOUT:
            group = head * tl.cdiv(all_rows, ROWS) + (first_row + first) // ROWS
            kept = keep_tile(seed, group, start + t, threshold)
            p = tl.where(kept, p * scale, 0.0)
        tl.store(dropped + here + start + t, p.to(dropped.dtype.element_ty), mask=inside)


@triton.jit
def _backward(
    scores,
    gradient,
    log_sum,
    delta,
    seeds,
    n,
    rows,
    first_head,
    first_column,
    row_stride,
    head_stride,
    threshold,
    scale,
    temperature,
    DROPOUT: tl.constexpr,
    WEIGHTS_KEPT: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    head = tl.program_id(1).to(tl.int64)
    first = tl.program_id(0) * ROWS
    row = first + tl.arange(0, ROWS)[:, None]
    t = tl.arange(0, COLUMNS)[None, :]
    here = head * head_stride + row.to(tl.int64) * row_stride
    position = head * rows + row
    d = tl.load(delta + position, mask=row < rows, other=0.0)
    log_total = tl.load(log_sum + position, mask=row < rows, other=0.0)
    seed = tl.load(seeds)
    for start in range(0, n, COLUMNS):
        inside = (row < rows) & (start + t < n)
        s = tl.load(scores + here + start + t, mask=inside, other=0.0).to(tl.float32)
        g = tl.load(gradient + here + start + t, mask=inside, other=0.0).to(tl.float32)
        p = s if WEIGHTS_KEPT else tl.exp2(s * LOG2_E - log_total)
        after = p
        if DROPOUT:
            group = (first_head + head) * tl.cdiv(rows, ROWS) + first // ROWS
            kept = keep_tile(seed, group, first_column + start + t, threshold)
            g = tl.where(kept, g * scale, 0.0)
            after = tl.where(kept, p * scale, 0.0)
        if not WEIGHTS_KEPT:
            tl.store(scores + here + start + t, after.to(scores.dtype.element_ty), mask=inside)
        ds = p * (g - d) * temperature
        tl.store(gradient + here + start + t, ds.to(gradient.dtype.element_ty), mask=inside)


@triton.jit
def _delta(out, gradient, delta, n, heads, width, WIDTH: tl.constexpr):
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    t = tl.arange(0, WIDTH)
    here = row * heads * width + head * width + t
    o = tl.load(out + here, mask=t < width, other=0.0).to(tl.float32)
    g = tl.load(gradient + here, mask=t < width, other=0.0).to(tl.float32)
    tl.store(delta + head * n + row, tl.sum(o * g, 0))


def softmax_dropout_(
    scores: Tensor,
    log_sum: Tensor,
    seeds: Tensor,
    dropout: float,
    first_row: int = 0,
    dropped: Tensor | None = None,
) -> Tensor:
    """The attention weights after dropout, for a block of rows of scores.

    Args:
        scores: ``(heads, rows, n)``, contiguous in n. Overwritten by the weights before dropout if
            ``dropped`` is given, else by those after.
        log_sum: ``(heads, all rows)`` float32; the rows of the block get log2 of the sums of exp.
        seeds: int64 on the device; the first is used.
        dropout: probability.
        first_row: position of the block, a multiple of 8.
        dropped: receives the weights after dropout.

    Returns:
        The weights after dropout, ``(heads, rows, n)``.
    """
    heads, rows, n = scores.shape
    result = scores if dropped is None else dropped
    threshold, scale = threshold_and_scale(dropout)
    _forward[(triton.cdiv(rows, ROWS), heads)](
        *(scores, result, log_sum, seeds),
        *(n, rows, first_row, log_sum.shape[1], scores.stride(1), scores.stride(0)),
        *(threshold, scale),
        DROPOUT=threshold > 0,
        KEEP_WEIGHTS=dropped is not None,
        ROWS=ROWS,
        COLUMNS=FORWARD[0],
        num_warps=FORWARD[1],
    )
    return result


def softmax_dropout_backward_(
    scores: Tensor,
    gradient: Tensor,
    log_sum: Tensor,
    delta: Tensor,
    seeds: Tensor,
    dropout: float,
    temperature: float,
    first_head: int = 0,
    first_column: int = 0,
    weights_kept: bool = False,
) -> None:
    """Turn the gradient of weights into that of scores, in place, for a block of columns.

    Args:
        scores: ``(heads, rows, columns)`` of all rows. With ``weights_kept`` these are the weights
            before dropout, left as they are. Otherwise they are scores, overwritten by the weights
            after dropout.
        gradient: gradient of the weights after dropout, in the same layout; overwritten by
            ``temperature`` times the gradient of the scores.
        log_sum: ``(heads, rows)`` of :func:`softmax_dropout_`.
        delta: ``(heads, rows)`` of :func:`output_times_gradient`.
        seeds, dropout: as in the forward pass.
        temperature: the factor that the scores were multiplied by.
        first_head, first_column: position of the block.
        weights_kept: whether ``scores`` contains weights.
    """
    heads, rows, columns = scores.shape
    width, warps = BACKWARD_KEPT if weights_kept else BACKWARD
    threshold, scale = threshold_and_scale(dropout)
    _backward[(triton.cdiv(rows, ROWS), heads)](
        *(scores, gradient, log_sum, delta, seeds),
        *(columns, rows, first_head, first_column, scores.stride(1), scores.stride(0)),
        *(threshold, scale, temperature),
        DROPOUT=threshold > 0,
        WEIGHTS_KEPT=weights_kept,
        ROWS=ROWS,
        COLUMNS=width,
        num_warps=warps,
    )


def output_times_gradient(out: Tensor, gradient: Tensor, heads: int) -> Tensor:
    """The product of two ``(N, C)`` tensors, summed over each head: ``(heads, N)`` float32."""
    n, channels = out.shape
    width = channels // heads
    delta = torch.empty(heads, n, dtype=torch.float32, device=out.device)
    _delta[(n, heads)](
        out, gradient, delta, n, heads, width, WIDTH=triton.next_power_of_2(width), num_warps=1
    )
    return delta


# ---- Attention in blocks.

#: The most bytes of weights, before and after dropout, that a layer keeps for the backward pass.
KEPT_BUDGET = 512 * 2**20
#: Bytes of one block of scores, if blocks are recomputed.
BLOCK_BUDGET = 128 * 2**20
#: Rows of a block are multiples of this, for dropout's tiles and for aligned matrix products.
ALIGNMENT = 8


class SampleAttention(torch.autograd.Function):
    """Map queries, keys and values of all heads side by side, ``(N, 3 C)``, to ``(N, C)``."""

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, heads: int, dropout: float, seeds: Tensor) -> Tensor:
        out, log_sum, *kept = attend(qkv, heads, dropout, seeds)
        ctx.save_for_backward(qkv, out, log_sum, seeds, *kept)
        ctx.heads, ctx.dropout = heads, dropout
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        qkv, out, log_sum, seeds, *kept = ctx.saved_tensors
        into = attend_backward(gradient, qkv, out, log_sum, seeds, kept, ctx.heads, ctx.dropout)
        return into, None, None, None


def attend(qkv: Tensor, heads: int, dropout: float, seeds: Tensor) -> tuple[Tensor, ...]:
    """The forward pass: mixed values ``(N, C)`` and log2 of the sums of exp ``(heads, N)``.

    Weights that are kept follow: ``(heads, N, N)`` before dropout and, if there is any, after it.
    """
    q, k, v = _split(qkv, heads)
    n, width = q.shape[1:]
    out = qkv.new_empty(n, heads * width)
    by_head = out.view(n, heads, width).transpose(0, 1)
    log_sum = torch.empty(heads, n, dtype=torch.float32, device=qkv.device)
    rows = block_rows(n, heads, qkv.element_size(), dropout)
    kept: tuple[Tensor, ...] = ()
    for start in range(0, n, rows):
        block = slice(start, min(start + rows, n))
        scores = _scores(q[:, block], k, width**-0.5)
        dropped = (
            torch.empty_strided(scores.shape, scores.stride(), dtype=qkv.dtype, device=qkv.device)
            if rows == n and dropout
            else None
        )
        weights = softmax_dropout_(scores, log_sum, seeds, dropout, start, dropped)
        torch.bmm(weights, v, out=by_head[:, block])
        if rows == n:
            kept = (scores,) if dropped is None else (scores, dropped)
    return out, log_sum, *kept


def attend_backward(
    gradient: Tensor,
    qkv: Tensor,
    out: Tensor,
    log_sum: Tensor,
    seeds: Tensor,
    kept: Sequence[Tensor],
    heads: int,
    dropout: float,
) -> Tensor:
    """The gradient of ``qkv``, from what :func:`attend` was given and returned."""
    gradient = gradient.contiguous()
    q, k, v = _split(qkv, heads)
    n, width = q.shape[1:]
    into = torch.empty_like(qkv)
    dq, dk, dv = _split(into, heads)
    delta = output_times_gradient(out, gradient, heads)
    g = gradient.view(n, heads, width).transpose(0, 1)
    options = (seeds, dropout, width**-0.5)
    if kept:
        scores, weights = kept[0], kept[-1]
        torch.bmm(weights.transpose(1, 2), g, out=dv)
        ds = _scores(g, v, 1.0)
        softmax_dropout_backward_(scores, ds, log_sum, delta, *options, weights_kept=True)
        torch.bmm(ds, k, out=dq)
        torch.bmm(ds.transpose(1, 2), q, out=dk)
        return into
    # One head at a time: the sum of dQ over blocks then stays in the cache of the GPU.
    total = torch.empty(n, width, dtype=torch.float32, device=q.device)
    columns = _aligned_rows(n * qkv.element_size())
    for head in range(heads):
        one = slice(head, head + 1)
        for start in range(0, n, columns):
            block = slice(start, min(start + columns, n))
            weights = _scores(q[one], k[one, block], width**-0.5)
            ds = _scores(g[one], v[one, block], 1.0)
            softmax_dropout_backward_(
                *(weights, ds, log_sum[one], delta[one], *options),
                first_head=head,
                first_column=start,
            )
            torch.bmm(weights.transpose(1, 2), g[one], out=dv[one, block])
            torch.bmm(ds.transpose(1, 2), q[one], out=dk[one, block])
            part = torch.mm(ds[0], k[head, block])
            total.add_(part) if start else total.copy_(part)
        dq[head].copy_(total)
    return into


def block_rows(n: int, heads: int, item_size: int, dropout: float) -> int:
    """Rows of a block; ``n`` if all weights may be kept.

    >>> block_rows(4096, 4, 2, 0.5), block_rows(16384, 4, 2, 0.5)
    (4096, 1024)
    """
    row = heads * n * item_size
    if n * row * (2 if dropout else 1) <= KEPT_BUDGET:
        return n
    return _aligned_rows(row)


def _aligned_rows(size: int) -> int:
    """Rows of this many bytes that fit a block."""
    return max(BLOCK_BUDGET // size // ALIGNMENT, 1) * ALIGNMENT


def _split(qkv: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Three views ``(heads, N, D)`` of ``(N, 3 C)``."""
    q, k, v = qkv.view(len(qkv), 3, heads, -1).permute(1, 2, 0, 3)
    return q, k, v


def _scores(a: Tensor, b: Tensor, factor: float) -> Tensor:
    """``factor * a bᵀ``, ``(heads, rows, n)``, with each row at an aligned address."""
    out = empty_scores(len(a), a.shape[1], b.shape[1], a)
    # The factor is applied before rounding, so half precision does not overflow.
    return torch.baddbmm(out, a, b.transpose(1, 2), beta=0, alpha=factor, out=out)


def empty_scores(heads: int, rows: int, n: int, like: Tensor) -> Tensor:
    """Uninitialised scores ``(heads, rows, n)`` with the type and on the device of ``like``."""
    aligned = -(-n // ALIGNMENT) * ALIGNMENT
    return like.new_empty(heads, rows, aligned)[..., :n]
