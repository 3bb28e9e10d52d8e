"""``relu(batch_norm(y) + residual)`` in training, channels-last, with its gradients, in Triton.

In channels-last memory (N, C, H, W) is P = N H W rows of C values. A tile holds some rows of all
channels; a chunk holds the tiles that one program sums. Every sum has a fixed order, so the same
input gives the same bits.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from batchformer.kernels.available import processors

#: Programs per multiprocessor of the kernels that sum over rows.
SUM_PROGRAMS = 8
#: Chunks that a merging kernel reads at once, and its warps.
MERGE_CHUNKS, MERGE_WARPS = 4096, 8
#: Values of one tile of rows, and warps that work on it, by kernel.
MOMENTS_TILE, MOMENTS_WARPS = 2048, 2
APPLY_TILE, APPLY_WARPS = 8192, 8
SUMS_TILE, SUMS_WARPS = 1024, 2
GRADIENT_TILE, GRADIENT_WARPS = 4096, 4


class Moments(NamedTuple):
    """Mean and sum of squared deviations of each chunk of rows, per channel."""

    parts: Tensor  # (2, C, chunks), float32
    rows: int  # of a chunk; the last one may have fewer


def batch_norm_relu(
    y: Tensor, norm: nn.BatchNorm2d, residual: Tensor | None = None, moments: Moments | None = None
) -> Tensor:
    """``relu(norm(y) + residual)`` in training; updates the running statistics of `norm`.

    y (N, C, H, W) is channels-last; the residual has its shape and type. The norm is affine, tracks
    statistics with a momentum, and is in float32. Moments of y are computed if they are not known.
    It has no second derivatives: use `kernels.disabled()` for them.
    """
    out: Tensor = _BatchNormRelu.apply(y, norm.weight, norm.bias, residual, norm, moments)
    return out


class _BatchNormRelu(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        y: Tensor,
        weight: Tensor,
        bias: Tensor,
        residual: Tensor | None,
        norm: nn.BatchNorm2d,
        moments: Moments | None,
    ) -> Tensor:
        y = y.contiguous(memory_format=torch.channels_last)
        statistics = merge(moments or row_moments(y), y, norm)
        out = apply(y, statistics, weight, bias, residual)
        # Without a residual the sign before the ReLU follows from y, so `out` is not needed.
        ctx.save_for_backward(y, statistics, weight, bias, None if residual is None else out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        y, statistics, weight, bias, out = ctx.saved_tensors
        dout = dout.contiguous(memory_format=torch.channels_last)
        gradient, sums = gradient_sums(dout, y, statistics, weight, bias, out)
        dweight, dbias = merge_sums(sums)
        dy = None
        if ctx.needs_input_grad[0]:
            rectify = out is None
            dy = input_gradient(gradient, y, statistics, weight, bias, dweight, dbias, rectify)
        return dy, dweight, dbias, None if out is None else gradient, None, None


# Forward: moments of chunks, merged to statistics, then the normalisation.
#
# Variances are merged from squared deviations of chunks, never from sums of squares, which lose
# the variance if the mean is large.


def row_moments(y: Tensor) -> Moments:
    """Moments of y (N, C, H, W), channels-last."""
    channels, pixels, block, rows = shape_of(y, MOMENTS_TILE)
    tiles, chunks = chunks_of(pixels, rows, y.device)
    parts = y.new_empty(2, channels, chunks, dtype=torch.float32)
    with torch.cuda.device_of(y):
        _row_moments[(chunks,)](
            y, parts, pixels, tiles, C=channels, BLOCK=block, ROWS=rows, num_warps=MOMENTS_WARPS
        )
    return Moments(parts, tiles * rows)


def merge(moments: Moments, y: Tensor, norm: nn.BatchNorm2d) -> Tensor:
    """Mean and inverse standard deviation (2, C) of y; updates the running statistics of `norm`."""
    _, channels, chunks = moments.parts.shape
    statistics = moments.parts.new_empty(2, channels)
    with torch.cuda.device_of(y):
        _merge[(channels,)](
            moments.parts, statistics,
            norm.running_mean, norm.running_var, norm.num_batches_tracked,
            y.numel() // channels, moments.rows, chunks, norm.eps, norm.momentum,
            BLOCK=merged_at_once(chunks), num_warps=MERGE_WARPS,
        )  # fmt: skip
    return statistics


def apply(
    y: Tensor, statistics: Tensor, weight: Tensor, bias: Tensor, residual: Tensor | None
) -> Tensor:
    """Normalise y (N, C, H, W) by statistics (2, C), add the residual, rectify."""
    if residual is not None:
        residual = residual.contiguous(memory_format=torch.channels_last)
    channels, pixels, block, rows = shape_of(y, APPLY_TILE)
    out = torch.empty_like(y)
    with torch.cuda.device_of(y):
        _apply[(triton.cdiv(pixels, rows),)](
            y, residual, out, statistics, weight, bias, pixels,
            C=channels, BLOCK=block, ROWS=rows, num_warps=APPLY_WARPS,
        )  # fmt: skip
    return out


@triton.jit
def _row_moments(
    y_ptr, parts_ptr, pixels, tiles, C: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr
):
    chunk = tl.program_id(0)
    chunks = tl.num_programs(0)
    first = chunk * tiles * ROWS
    here = tl.arange(0, ROWS)
    # Welford's recurrence in each lane; lanes are combined once, at the end.
    count = tl.zeros((ROWS, 1), tl.float32)
    mean = tl.zeros((ROWS, BLOCK), tl.float32)
    squares = tl.zeros((ROWS, BLOCK), tl.float32)
    for tile in range(tiles):
        start = first + tile * ROWS
        offset, inside = offsets(start, pixels, C, BLOCK, ROWS)
        y = tl.load(y_ptr + offset, inside, 0.0).to(tl.float32)
        count += (start + here < pixels).to(tl.float32)[:, None]
        apart = tl.where(inside, y - mean, 0.0)
        mean += apart / tl.maximum(count, 1.0)
        squares += apart * (y - mean)
    total = tl.sum(count * mean, 0) / tl.minimum(pixels - first, tiles * ROWS).to(tl.float32)
    apart = mean - total[None, :]
    channel = tl.arange(0, BLOCK)
    tl.store(parts_ptr + channel * chunks + chunk, total, channel < C)
    squares_ptr = parts_ptr + (C + channel) * chunks + chunk
    tl.store(squares_ptr, tl.sum(squares + count * apart * apart, 0), channel < C)


@triton.jit
def _merge(
    parts_ptr, statistics_ptr, running_mean_ptr, running_var_ptr, tracked_ptr,
    pixels, rows, chunks, eps, momentum, BLOCK: tl.constexpr,
):  # fmt: skip
    channel = tl.program_id(0)
    channels = tl.num_programs(0)
    mean_ptr = parts_ptr + channel * chunks
    squares_ptr = parts_ptr + (channels + channel) * chunks
    total = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, chunks, BLOCK):
        chunk = first + tl.arange(0, BLOCK)
        count = tl.minimum(pixels - chunk * rows, rows).to(tl.float32)
        total += count * tl.load(mean_ptr + chunk, chunk < chunks, 0.0)
    size = pixels.to(tl.float32)
    mean = tl.sum(total, 0) / size
    total = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, chunks, BLOCK):
        chunk = first + tl.arange(0, BLOCK)
        count = tl.minimum(pixels - chunk * rows, rows).to(tl.float32)
        apart = tl.load(mean_ptr + chunk, chunk < chunks, 0.0) - mean
        squares = tl.load(squares_ptr + chunk, chunk < chunks, 0.0)
        total += tl.where(chunk < chunks, squares + count * apart * apart, 0.0)
    squares = tl.sum(total, 0)
    tl.store(statistics_ptr + channel, mean)
    tl.store(statistics_ptr + channels + channel, 1.0 / tl.sqrt(squares / size + eps))
    # As nn.BatchNorm2d: the running variance is the unbiased one.
    old = tl.load(running_mean_ptr + channel)
    tl.store(running_mean_ptr + channel, old + momentum * (mean - old))
    old = tl.load(running_var_ptr + channel)
    tl.store(running_var_ptr + channel, old + momentum * (squares / (size - 1.0) - old))
    if channel == 0:
        tl.store(tracked_ptr, tl.load(tracked_ptr) + 1)


@triton.jit
def _apply(
    y_ptr, residual_ptr, out_ptr, statistics_ptr, weight_ptr, bias_ptr, pixels,
    C: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    offset, inside = offsets(tl.program_id(0) * ROWS, pixels, C, BLOCK, ROWS)
    mean = read_channels(statistics_ptr, C, BLOCK)
    scale = read_channels(weight_ptr, C, BLOCK) * read_channels(statistics_ptr + C, C, BLOCK)
    y = tl.load(y_ptr + offset, inside, 0.0).to(tl.float32)
    z = (y - mean) * scale + read_channels(bias_ptr, C, BLOCK)
    if residual_ptr is not None:
        z += tl.load(residual_ptr + offset, inside, 0.0).to(tl.float32)
    # Not maximum(z, 0), which would turn NaN into zero and hide divergence.
    tl.store(out_ptr + offset, tl.where(z <= 0, 0.0, z).to(out_ptr.dtype.element_ty), inside)


# Backward, in two passes over the rows: the first sums the gradients of weight and bias, which
# the second needs.


def gradient_sums(
    dout: Tensor, y: Tensor, statistics: Tensor, weight: Tensor, bias: Tensor, out: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Sums (2, C, chunks) of g, the gradient before the ReLU, and of g times normalised y.

    `out` is the result of `apply` if it had a residual; then g is returned too, else `dout`
    unchanged.
    """
    channels, pixels, block, rows = shape_of(y, SUMS_TILE)
    tiles, chunks = chunks_of(pixels, rows, y.device)
    sums = y.new_empty(2, channels, chunks, dtype=torch.float32)
    gradient = dout if out is None else torch.empty_like(y)
    with torch.cuda.device_of(y):
        _gradient_sums[(chunks,)](
            dout, y, out, gradient, statistics, weight, bias, sums, pixels, tiles,
            C=channels, BLOCK=block, ROWS=rows, num_warps=SUMS_WARPS,
        )  # fmt: skip
    return gradient, sums


def merge_sums(sums: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of weight and bias (C,) from sums (2, C, chunks)."""
    _, channels, chunks = sums.shape
    merged = sums.new_empty(2, channels)
    with torch.cuda.device_of(sums):
        _merge_sums[(2 * channels,)](
            sums, merged, chunks,
            BLOCK=merged_at_once(chunks), num_warps=MERGE_WARPS,
        )  # fmt: skip
    return merged[1], merged[0]


def input_gradient(
    gradient: Tensor,
    y: Tensor,
    statistics: Tensor,
    weight: Tensor,
    bias: Tensor,
    dweight: Tensor,
    dbias: Tensor,
    rectify: bool,
) -> Tensor:
    """The gradient of y (N, C, H, W); with `rectify`, `gradient` is that after the ReLU."""
    channels, pixels, block, rows = shape_of(y, GRADIENT_TILE)
    dy = torch.empty_like(y)
    with torch.cuda.device_of(y):
        _input_gradient[(triton.cdiv(pixels, rows),)](
            gradient, y, dy, statistics, weight, bias, dweight, dbias, pixels,
            RECTIFY=rectify, C=channels, BLOCK=block, ROWS=rows, num_warps=GRADIENT_WARPS,
        )  # fmt: skip
    return dy


@triton.jit
def _gradient_sums(
    dout_ptr, y_ptr, out_ptr, gradient_ptr, statistics_ptr, weight_ptr, bias_ptr, sums_ptr,
    pixels, tiles, C: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    chunk = tl.program_id(0)
    chunks = tl.num_programs(0)
    mean = read_channels(statistics_ptr, C, BLOCK)
    inverse = read_channels(statistics_ptr + C, C, BLOCK)
    scale = read_channels(weight_ptr, C, BLOCK) * inverse
    bias = read_channels(bias_ptr, C, BLOCK)
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    total_y = tl.zeros((ROWS, BLOCK), tl.float32)
    for tile in range(tiles):
        offset, inside = offsets((chunk * tiles + tile) * ROWS, pixels, C, BLOCK, ROWS)
        dout = tl.load(dout_ptr + offset, inside, 0.0)
        apart = tl.load(y_ptr + offset, inside, 0.0).to(tl.float32) - mean
        if out_ptr is None:
            g = tl.where(apart * scale + bias <= 0, 0.0, dout.to(tl.float32))
        else:
            out = tl.load(out_ptr + offset, inside, 0.0).to(tl.float32)
            g = tl.where(out <= 0, 0.0, dout.to(tl.float32))
            tl.store(gradient_ptr + offset, g.to(gradient_ptr.dtype.element_ty), inside)
        total += g
        total_y += g * (apart * inverse)
    channel = tl.arange(0, BLOCK)
    tl.store(sums_ptr + channel * chunks + chunk, tl.sum(total, 0), channel < C)
    tl.store(sums_ptr + (C + channel) * chunks + chunk, tl.sum(total_y, 0), channel < C)


@triton.jit
def _merge_sums(sums_ptr, merged_ptr, chunks, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    total = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, chunks, BLOCK):
        chunk = first + tl.arange(0, BLOCK)
        total += tl.load(sums_ptr + row * chunks + chunk, chunk < chunks, 0.0)
    tl.store(merged_ptr + row, tl.sum(total, 0))


@triton.jit
def _input_gradient(
    gradient_ptr, y_ptr, dy_ptr, statistics_ptr, weight_ptr, bias_ptr, dweight_ptr, dbias_ptr,
    pixels, RECTIFY: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    offset, inside = offsets(tl.program_id(0) * ROWS, pixels, C, BLOCK, ROWS)
    size = pixels.to(tl.float32)
    mean = read_channels(statistics_ptr, C, BLOCK)
    inverse = read_channels(statistics_ptr + C, C, BLOCK)
    scale = read_channels(weight_ptr, C, BLOCK) * inverse
    mean_g = read_channels(dbias_ptr, C, BLOCK) / size
    mean_gy = read_channels(dweight_ptr, C, BLOCK) / size
    g = tl.load(gradient_ptr + offset, inside, 0.0).to(tl.float32)
    apart = tl.load(y_ptr + offset, inside, 0.0).to(tl.float32) - mean
    if RECTIFY:
        g = tl.where(apart * scale + read_channels(bias_ptr, C, BLOCK) <= 0, 0.0, g)
    dy = scale * (g - mean_g - apart * inverse * mean_gy)
    tl.store(dy_ptr + offset, dy.to(dy_ptr.dtype.element_ty), inside)


# Rows, tiles and chunks.


def shape_of(y: Tensor, tile: int) -> tuple[int, int, int, int]:
    """Channels, pixels, channels padded to a power of two, and rows of a tile."""
    channels = y.shape[1]
    block = triton.next_power_of_2(channels)
    return channels, y.numel() // channels, block, max(1, tile // block)


def chunks_of(pixels: int, rows: int, device: torch.device) -> tuple[int, int]:
    """Tiles of a chunk, and the number of chunks; each program sums one chunk."""
    tiles = triton.cdiv(triton.cdiv(pixels, rows), SUM_PROGRAMS * processors(device))
    return tiles, triton.cdiv(pixels, tiles * rows)


def merged_at_once(chunks: int) -> int:
    """Chunks that a merging kernel reads at once, a power of two."""
    return int(min(triton.next_power_of_2(chunks), MERGE_CHUNKS))


@triton.jit
def offsets(start, pixels, C: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    """Offsets and mask (ROWS, BLOCK) of a tile of rows."""
    here = tl.arange(0, ROWS)
    channel = tl.arange(0, BLOCK)
    inside = (start + here < pixels)[:, None] & (channel < C)[None, :]
    return start.to(tl.int64) * C + (here[:, None] * C + channel[None, :]), inside


@triton.jit
def read_channels(values_ptr, C: tl.constexpr, BLOCK: tl.constexpr):
    """Values of the channels as a row (1, BLOCK)."""
    channel = tl.arange(0, BLOCK)
    return tl.load(values_ptr + channel, channel < C, 0.0)[None, :]
