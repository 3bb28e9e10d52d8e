"""Pixels as rows: (N, C, H, W) in channels-last memory is P = N H W rows of C values.

A tile holds some rows of all channels, a chunk the tiles that one program sums.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from batchformer.kernels.available import processors

#: Programs per multiprocessor of the kernels that sum over rows.
SUM_PROGRAMS = 8
#: Chunks that the kernels merging them read at once, and their warps.
MERGE_CHUNKS, MERGE_WARPS = 4096, 8


def shape_of(y: Tensor, tile: int) -> tuple[int, int, int, int]:
    """Channels, pixels, channels padded to a power of two, and rows of a tile."""
    channels = y.shape[1]
    block = triton.next_power_of_2(channels)
    return channels, y.numel() // channels, block, max(1, tile // block)


def chunks_of(pixels: int, rows: int, device: torch.device) -> tuple[int, int]:
    """Tiles of a chunk, and chunks, such that each program sums one chunk."""
    tiles = triton.cdiv(triton.cdiv(pixels, rows), SUM_PROGRAMS * processors(device))
    return tiles, triton.cdiv(pixels, tiles * rows)


def merged_at_once(chunks: int) -> int:
    """Chunks that a kernel which merges them reads at once: a power of two."""
    return int(min(triton.next_power_of_2(chunks), MERGE_CHUNKS))


@triton.jit
def offsets(start, pixels, C: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    """Where a tile of rows lies, and what of it exists: (ROWS, BLOCK) both."""
    here = tl.arange(0, ROWS)
    channel = tl.arange(0, BLOCK)
    inside = (start + here < pixels)[:, None] & (channel < C)[None, :]
    return start.to(tl.int64) * C + (here[:, None] * C + channel[None, :]), inside


@triton.jit
def read_channels(values_ptr, C: tl.constexpr, BLOCK: tl.constexpr):
    """Values of the channels as a row (1, BLOCK)."""
    channel = tl.arange(0, BLOCK)
    return tl.load(values_ptr + channel, channel < C, 0.0)[None, :]
