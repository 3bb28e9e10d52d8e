"""``dropout(relu(x + bias))`` in one pass over memory, forward and backward."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from batchformer.kernels.dropout import ROWS, column_sums, keep_tile, threshold_and_scale

#: Columns of a tile, and programs along the rows. Each sums the bias's gradient over its rows.
COLUMNS, PROGRAMS = 256, 128


@triton.jit
def _forward(
    x, bias, out, seeds, n, channels, threshold, scale,
    DROPOUT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    b = tl.load(bias + column, mask=column < channels, other=0.0).to(tl.float32)
    seed = tl.load(seeds)
    for group in range(tl.program_id(0), tl.cdiv(n, ROWS), tl.num_programs(0)):
        row = group * ROWS + tl.arange(0, ROWS)[:, None]
        inside = (row < n) & (column < channels)
        here = row.to(tl.int64) * channels + column
        y = tl.load(x + here, mask=inside, other=0.0).to(tl.float32) + b
        # Not maximum(y, 0), which would turn NaN into zero and hide a run that diverges.
        y = tl.where(y <= 0, 0.0, y)
        if DROPOUT:
            y = tl.where(keep_tile(seed, group, column, threshold), y * scale, 0.0)
        tl.store(out + here, y.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _backward(
    gradient, out, dx, partial, n, channels, scale,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    db = tl.zeros((ROWS, COLUMNS), tl.float32)
    for group in range(tl.program_id(0), tl.cdiv(n, ROWS), tl.num_programs(0)):
        row = group * ROWS + tl.arange(0, ROWS)[:, None]
        inside = (row < n) & (column < channels)
        here = row.to(tl.int64) * channels + column
        g = tl.load(gradient + here, mask=inside, other=0.0).to(tl.float32)
        # Elements that dropout or the ReLU removed are zero in the output. A NaN is not, and lets
        # the gradient pass, as torch's ReLU does.
        stopped = tl.load(out + here, mask=inside, other=0.0) <= 0
        g = tl.where(stopped, 0.0, g * scale)
        db += g
        tl.store(dx + here, g.to(dx.dtype.element_ty), mask=inside)
    last = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    tl.store(partial + tl.program_id(0) * channels + last, tl.sum(db, 0), mask=last < channels)


class ReluDropout(torch.autograd.Function):
    """``(N, C)`` and a bias ``(C,)`` to ``(N, C)``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor, dropout: float, seeds: Tensor) -> Tensor:
        x = x.contiguous()
        n, channels = x.shape
        out = torch.empty_like(x)
        threshold, scale = threshold_and_scale(dropout)
        _forward[_grid(n, channels)](
            x, bias, out, seeds, n, channels, threshold, scale,
            DROPOUT=threshold > 0, ROWS=ROWS, COLUMNS=COLUMNS, num_warps=4,
        )  # fmt: skip
        ctx.save_for_backward(out)
        ctx.scale, ctx.bias_type = scale, bias.dtype
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (out,) = ctx.saved_tensors
        n, channels = out.shape
        dx = torch.empty_like(out)
        grid = _grid(n, channels)
        partial = torch.empty(grid[0], channels, dtype=torch.float32, device=out.device)
        _backward[grid](
            gradient.contiguous(), out, dx, partial, n, channels, ctx.scale,
            ROWS=ROWS, COLUMNS=COLUMNS, num_warps=4,
        )  # fmt: skip
        return dx, column_sums(partial, ctx.bias_type), None, None


def _grid(n: int, channels: int) -> tuple[int, int]:
    return min(triton.cdiv(n, ROWS), PROGRAMS), triton.cdiv(channels, COLUMNS)
