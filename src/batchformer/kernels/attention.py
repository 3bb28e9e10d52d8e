"""Attention over samples at the speed of matrix products, for heads of any width.

Scores, weights and their gradients are made in blocks by the library's matrix products, and
:mod:`batchformer.kernels.softmax` does what lies between in one pass. Where all weights fit a
budget they are kept for the backward pass; where not, blocks are computed again there, and memory
grows with the number of samples rather than with its square.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from batchformer.kernels.softmax import (
    output_times_gradient,
    softmax_dropout_,
    softmax_dropout_backward_,
)

#: Weights of one encoder layer that are kept for the backward pass, before and after dropout.
KEPT_BUDGET = 512 * 2**20
#: Scores that exist at a time where they are computed again.
BLOCK_BUDGET = 128 * 2**20
#: Blocks are whole tiles of the generator, and rows are aligned for the matrix products.
ALIGNMENT = 8


class SampleAttention(torch.autograd.Function):
    """``(N, 3 C)`` queries, keys and values of all heads, side by side, to ``(N, C)``."""

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, heads: int, dropout: float, seeds: Tensor) -> Tensor:
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
                torch.empty_strided(
                    scores.shape, scores.stride(), dtype=qkv.dtype, device=qkv.device
                )
                if rows == n and dropout
                else None
            )
            weights = softmax_dropout_(scores, log_sum, seeds, dropout, start, dropped)
            torch.bmm(weights, v, out=by_head[:, block])
            if rows == n:
                kept = (scores, weights)
        ctx.save_for_backward(qkv, out, log_sum, seeds, *kept)
        ctx.heads, ctx.dropout, ctx.rows = heads, dropout, rows
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        qkv, out, log_sum, seeds, *kept = ctx.saved_tensors
        gradient = gradient.contiguous()
        q, k, v = _split(qkv, ctx.heads)
        n, width = q.shape[1:]
        into = torch.empty_like(qkv)
        dq, dk, dv = _split(into, ctx.heads)
        delta = output_times_gradient(out, gradient, ctx.heads)
        g = gradient.view(n, ctx.heads, width).transpose(0, 1)
        options = (log_sum, delta, seeds, ctx.dropout, width**-0.5)
        if kept:
            scores, weights = kept
            torch.bmm(weights.transpose(1, 2), g, out=dv)
            ds = _scores(g, v, 1.0)
            softmax_dropout_backward_(scores, ds, *options, weights_kept=True)
            torch.bmm(ds, k, out=dq)
            torch.bmm(ds.transpose(1, 2), q, out=dk)
            return into, None, None, None
        total = torch.zeros(q.shape, dtype=torch.float32, device=q.device)
        for start in range(0, n, ctx.rows):
            block = slice(start, min(start + ctx.rows, n))
            weights = _scores(q, k[:, block], width**-0.5)
            ds = _scores(g, v[:, block], 1.0)
            softmax_dropout_backward_(weights, ds, *options, first_column=start)
            torch.bmm(weights.transpose(1, 2), g, out=dv[:, block])
            torch.bmm(ds.transpose(1, 2), q, out=dk[:, block])
            total += torch.bmm(ds, k[:, block])  # in float32: many small blocks are summed
        dq.copy_(total)
        return into, None, None, None


def block_rows(n: int, heads: int, item_size: int, dropout: float) -> int:
    """Rows of a block; ``n`` if all weights may be kept.

    >>> block_rows(4096, 4, 2, 0.5), block_rows(16384, 4, 2, 0.5)
    (4096, 1024)
    """
    row = heads * n * item_size
    if n * row * (2 if dropout else 1) <= KEPT_BUDGET:
        return n
    return max(BLOCK_BUDGET // row // ALIGNMENT, 1) * ALIGNMENT


def _split(qkv: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Three views ``(heads, N, D)`` of ``(N, 3 C)``."""
    q, k, v = qkv.view(len(qkv), 3, heads, -1).permute(1, 2, 0, 3)
    return q, k, v


def _scores(a: Tensor, b: Tensor, factor: float) -> Tensor:
    """``factor * a bᵀ``, ``(heads, rows, n)``, each row starting at an aligned address."""
    heads, rows, n = len(a), a.shape[1], b.shape[1]
    aligned = -(-n // ALIGNMENT) * ALIGNMENT
    out = torch.empty(heads, rows, aligned, dtype=a.dtype, device=a.device)[..., :n]
    # The factor acts before the product is rounded, so half precision does not overflow.
    return torch.baddbmm(out, a, b.transpose(1, 2), beta=0, alpha=factor, out=out)
