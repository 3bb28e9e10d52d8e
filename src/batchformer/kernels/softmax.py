"""Softmax over samples with dropout, forward and backward, in place on blocks of scores.

The scores come from a matrix product and go into one, both at the hardware's speed; these kernels
do what lies between in one pass over memory. Dropout is a function of (seed, row, column), so a
block can be computed again in the backward pass with the same weights dropped.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from batchformer.kernels.dropout import ROWS, keep_tile, threshold_and_scale

LOG2_E = tl.constexpr(1.4426950408889634)
#: Columns of a tile, and warps: forward, backward with kept weights, backward without.
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
        # Columns beyond n stay at -inf, whose difference from itself is not a number.
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
            group = head * tl.cdiv(rows, ROWS) + first // ROWS
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
    """The weights after dropout of a block of rows of scores.

    Args:
        scores: ``(heads, rows, n)`` with unit stride; overwritten by the weights before dropout if
            ``dropped`` is given, else by those after.
        log_sum: ``(heads, all rows)`` float32, filled at these rows with log2 of the sums of exp.
        seeds: int64 on the device; the first is used.
        dropout: probability.
        first_row: position of the block, a multiple of 8.
        dropped: where the weights after dropout go.

    Returns:
        The weights after dropout, ``(heads, rows, n)``.
    """
    heads, rows, n = scores.shape
    result = scores if dropped is None else dropped
    threshold, scale = threshold_and_scale(dropout)
    _forward[(triton.cdiv(rows, ROWS), heads)](
        scores,
        result,
        log_sum,
        seeds,
        n,
        rows,
        first_row,
        log_sum.shape[1],
        scores.stride(1),
        scores.stride(0),
        threshold,
        scale,
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
    first_column: int = 0,
    weights_kept: bool = False,
) -> None:
    """Turn the gradient of a block of columns of weights into that of the scores, in place.

    Args:
        scores: ``(heads, rows, columns)`` of all rows. With ``weights_kept`` these are the weights
            before dropout, and stay; otherwise scores, overwritten by the weights after dropout.
        gradient: of the weights after dropout, in the same layout; overwritten by
            ``temperature`` times the gradient of the scores.
        log_sum: ``(heads, rows)`` of :func:`softmax_dropout_`.
        delta: ``(heads, rows)`` of :func:`output_times_gradient`.
        seeds, dropout: as in the forward pass.
        temperature: the factor that the scores were multiplied by.
        first_column: position of the block.
        weights_kept: what ``scores`` holds.
    """
    heads, rows, columns = scores.shape
    width, warps = BACKWARD_KEPT if weights_kept else BACKWARD
    threshold, scale = threshold_and_scale(dropout)
    _backward[(triton.cdiv(rows, ROWS), heads)](
        scores,
        gradient,
        log_sum,
        delta,
        seeds,
        columns,
        rows,
        first_column,
        scores.stride(1),
        scores.stride(0),
        threshold,
        scale,
        temperature,
        DROPOUT=threshold > 0,
        WEIGHTS_KEPT=weights_kept,
        ROWS=ROWS,
        COLUMNS=width,
        num_warps=warps,
    )


def output_times_gradient(out: Tensor, gradient: Tensor, heads: int) -> Tensor:
    """Sums over each head's channels, ``(heads, N)`` float32, of two tensors ``(N, C)``."""
    n, channels = out.shape
    width = channels // heads
    delta = torch.empty(heads, n, dtype=torch.float32, device=out.device)
    _delta[(n, heads)](
        out, gradient, delta, n, heads, width, WIDTH=triton.next_power_of_2(width), num_warps=1
    )
    return delta
