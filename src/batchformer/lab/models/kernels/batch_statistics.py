"""Mean and variance of each channel, and the running ones of a normalisation.

They are merged from means and squared deviations of chunks of rows, never from sums of squares,
which lose the variance where the mean is large. Everything is summed in a fixed order.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from batchformer.lab.models.kernels.channel_rows import (
    MERGE_WARPS,
    chunks_of,
    merged_at_once,
    offsets,
    shape_of,
)

#: Values of one tile of rows, and warps that work on it.
MOMENTS_TILE, MOMENTS_WARPS = 2048, 2


class Moments(NamedTuple):
    """Mean and sum of squared deviations of each chunk of rows, per channel.

    Args:
        parts: (2, C, chunks), float32.
        rows: rows of a chunk; the last one may have fewer.
    """

    parts: Tensor
    rows: int


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
    """Mean and inverse standard deviation (2, C) of y; moves the running statistics of `norm`."""
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


@triton.jit
def _row_moments(
    y_ptr, parts_ptr, pixels, tiles, C: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr
):
    chunk = tl.program_id(0)
    chunks = tl.num_programs(0)
    first = chunk * tiles * ROWS
    here = tl.arange(0, ROWS)
    # Welford's recurrence in each lane; lanes meet only once, at the end.
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
