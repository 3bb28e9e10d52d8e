"""Gradients of batch normalisation and the ReLU after it, in two passes over the rows.

The first sums what weight and bias need, in a fixed order; the second needs those sums.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from batchformer.lab.models.kernels.channel_rows import (
    MERGE_WARPS,
    chunks_of,
    merged_at_once,
    offsets,
    read_channels,
    shape_of,
)

#: Values of one tile of rows, and warps that work on it, by kernel.
SUMS_TILE, SUMS_WARPS = 1024, 2
GRADIENT_TILE, GRADIENT_WARPS = 4096, 4


def gradient_sums(
    dout: Tensor, y: Tensor, statistics: Tensor, weight: Tensor, bias: Tensor, out: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Sums over chunks of rows of the gradient before the ReLU, g, and of g times y normalised.

    Args:
        dout, y: (N, C, H, W).
        statistics, weight, bias: as of `apply`.
        out: what `apply` returned, where it had a residual.

    Returns:
        g with a residual, else `dout` as it is; sums (2, C, chunks).
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
    """The gradient of y (N, C, H, W); with `rectify`, `gradient` has yet to pass the ReLU."""
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
