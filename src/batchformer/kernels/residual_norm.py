"""``layer_norm(x + dropout(y + bias))`` in one pass over memory, forward and backward."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from batchformer.kernels.dropout import ROWS, column_sums, keep_tile, threshold_and_scale

#: Programs of the backward pass. Each sums the gradients of the affine parameters over its rows.
PROGRAMS = 528


@triton.jit
def _forward(
    x, y, y_bias, weight, bias, z, out, statistics, seeds, channels, threshold, scale, epsilon,
    DROPOUT: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    # A row is treated as a tile (8, WIDTH), so that one call of the generator serves 8 channels.
    t = tl.arange(0, WIDTH)[None, :]
    column = tl.arange(0, ROWS)[:, None] * WIDTH + t
    inside = column < channels
    here = row * channels + column
    mixed = tl.load(y + here, mask=inside, other=0.0).to(tl.float32)
    mixed += tl.load(y_bias + column, mask=inside, other=0.0).to(tl.float32)
    if DROPOUT:
        kept = keep_tile(tl.load(seeds), row, t, threshold)
        mixed = tl.where(kept, mixed * scale, 0.0)
    total = tl.load(x + here, mask=inside, other=0.0).to(tl.float32) + mixed
    total = total.to(z.dtype.element_ty)
    tl.store(z + here, total, mask=inside)
    total = total.to(tl.float32)
    mean = tl.sum(tl.sum(total, 1), 0) / channels
    centred = tl.where(inside, total - mean, 0.0)
    inverse = 1 / tl.sqrt(tl.sum(tl.sum(centred * centred, 1), 0) / channels + epsilon)
    tl.store(statistics + 2 * row, mean)
    tl.store(statistics + 2 * row + 1, inverse)
    w = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + here, (centred * inverse * w + b).to(out.dtype.element_ty), mask=inside)


@triton.jit
def _backward(
    gradient, z, weight, statistics, dx, dy, partial, seeds, n, channels, threshold, scale,
    DROPOUT: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    t = tl.arange(0, WIDTH)[None, :]
    column = tl.arange(0, ROWS)[:, None] * WIDTH + t
    inside = column < channels
    w = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    dw = tl.zeros((ROWS, WIDTH), tl.float32)
    db = tl.zeros((ROWS, WIDTH), tl.float32)
    dy_bias = tl.zeros((ROWS, WIDTH), tl.float32)
    seed = tl.load(seeds)
    for line in range(tl.program_id(0), n, tl.num_programs(0)):
        row = tl.cast(line, tl.int64)
        here = row * channels + column
        mean = tl.load(statistics + 2 * row)
        inverse = tl.load(statistics + 2 * row + 1)
        g = tl.load(gradient + here, mask=inside, other=0.0).to(tl.float32)
        normal = (tl.load(z + here, mask=inside, other=0.0).to(tl.float32) - mean) * inverse
        normal = tl.where(inside, normal, 0.0)
        dw += g * normal
        db += g
        g *= w
        mean_g = tl.sum(tl.sum(g, 1), 0) / channels
        along = tl.sum(tl.sum(g * normal, 1), 0) / channels
        dz = (g - mean_g - normal * along) * inverse
        tl.store(dx + here, dz.to(dx.dtype.element_ty), mask=inside)
        if DROPOUT:
            dz = tl.where(keep_tile(seed, row, t, threshold), dz * scale, 0.0)
        tl.store(dy + here, dz.to(dy.dtype.element_ty), mask=inside)
        dy_bias += tl.where(inside, dz, 0.0)
    sums = partial + tl.program_id(0) * 3 * channels
    tl.store(sums + column, dy_bias, mask=inside)
    tl.store(sums + channels + column, dw, mask=inside)
    tl.store(sums + 2 * channels + column, db, mask=inside)


class ResidualNorm(torch.autograd.Function):
    """Of the residual stream x ``(N, C)`` and the branch y ``(N, C)``, which dropout acts on.

    ``y_bias`` ``(C,)`` is the bias of the product that made y. Its gradient costs nothing here.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        y: Tensor,
        y_bias: Tensor,
        weight: Tensor,
        bias: Tensor,
        dropout: float,
        seeds: Tensor,
        dtype: torch.dtype,
    ) -> Tensor:
        x, y = x.contiguous(), y.contiguous()
        n, channels = x.shape
        z = torch.empty(x.shape, dtype=torch.promote_types(x.dtype, y.dtype), device=x.device)
        out = torch.empty(x.shape, dtype=dtype, device=x.device)
        statistics = torch.empty(n, 2, dtype=torch.float32, device=x.device)
        threshold, scale = threshold_and_scale(dropout)
        _forward[(n,)](
            x, y, y_bias, weight, bias, z, out, statistics, seeds, channels, threshold, scale, 1e-5,
            DROPOUT=threshold > 0, ROWS=ROWS, WIDTH=_width(channels), num_warps=_warps(channels),
        )  # fmt: skip
        ctx.save_for_backward(z, weight, statistics, seeds)
        ctx.dropout, ctx.types = dropout, (x.dtype, y.dtype)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        z, weight, statistics, seeds = ctx.saved_tensors
        n, channels = z.shape
        dx, dy = (torch.empty(z.shape, dtype=kind, device=z.device) for kind in ctx.types)
        programs = min(PROGRAMS, n)
        partial = torch.empty(programs, 3, channels, dtype=torch.float32, device=z.device)
        threshold, scale = threshold_and_scale(ctx.dropout)
        _backward[(programs,)](
            gradient.contiguous(), z, weight, statistics, dx, dy, partial, seeds, n, channels,
            threshold, scale,
            DROPOUT=threshold > 0, ROWS=ROWS, WIDTH=_width(channels), num_warps=_warps(channels),
        )  # fmt: skip
        dy_bias, dw, db = column_sums(partial, weight.dtype)
        return dx, dy, dy_bias, dw, db, None, None, None


def _width(channels: int) -> int:
    return max(int(triton.next_power_of_2(triton.cdiv(channels, ROWS))), 16)


def _warps(channels: int) -> int:
    """About sixteen elements of a row for each thread."""
    return min(max(_width(channels) * ROWS // 512, 1), 8)
