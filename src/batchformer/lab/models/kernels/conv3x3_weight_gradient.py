"""The gradient of a 3x3 convolution with respect to its weight, summed in a fixed order."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from batchformer.kernels.available import processors
from batchformer.lab.models.kernels.conv3x3_tiles import WEIGHT_GRADIENT, Share, windows

#: Of the kernel that sums parts: channels that a program writes, in units of Cout.
SUM_COLUMNS, SUM_PARTS, SUM_WARPS = 2, 32, 4


def weight_gradient(x: Tensor, dy: Tensor, weight: Tensor, share: Share | None = None) -> Tensor:
    """The gradient with respect to the weight, in its type and strides.

    Args:
        x: the input (N, Cin, H, W).
        dy: the gradient of the output (N, Cout, H, W).
        weight: (Cout, Cin, 3, 3); only its shape, strides and type matter.
        share: how to split the work; by the number of channels where None.
    """
    x = x.contiguous(memory_format=torch.channels_last)
    dy = dy.contiguous(memory_format=torch.channels_last)
    n, cin, height, width = x.shape
    cout = weight.shape[0]
    tile, per_processor = share or WEIGHT_GRADIENT[max(weight.shape[:2])]
    tile = tile.fitted(width)
    rows = n * height * width // tile.group
    wanted = max(1, per_processor * processors(x.device) // tile.steps())
    tiles = triton.cdiv(triton.cdiv(rows, tile.rows), wanted)
    programs = triton.cdiv(rows, tiles * tile.rows)
    shape = (programs, tile.steps(), tile.window * cin, tile.group * cout)
    parts = x.new_empty(shape, dtype=torch.float32)
    dw = torch.empty_like(weight)
    with torch.cuda.device_of(x):
        _weight_gradient[(programs, tile.steps())](
            x, dy, parts, rows, tiles,
            HEIGHT=height, WIDTH=width, CIN=cin, COUT=cout,
            WINDOW=tile.window, GROUP=tile.group, BLOCK=tile.rows,
            num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
        _sum_parts[(9 * cin // SUM_COLUMNS,)](
            parts, dw, programs, *dw.stride(),
            CIN=cin, COUT=cout, WINDOW=tile.window, GROUP=tile.group,
            BLOCK=SUM_COLUMNS * cout, PARTS=SUM_PARTS, num_warps=SUM_WARPS,
        )  # fmt: skip
    return dw


@triton.jit
def _weight_gradient(
    x_ptr, dy_ptr, parts_ptr, rows, tiles,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CIN: tl.constexpr, COUT: tl.constexpr,
    WINDOW: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    step = tl.program_id(1)
    here = tl.arange(0, BLOCK)
    lane_in = tl.arange(0, WINDOW * CIN)
    lane_out = tl.arange(0, GROUP * COUT)
    total = tl.zeros((WINDOW * CIN, GROUP * COUT), tl.float32)
    for tile in range(tiles):
        start = (program * tiles + tile) * BLOCK
        x = windows(x_ptr, start, rows, step, HEIGHT, WIDTH, CIN, WINDOW, GROUP, BLOCK)
        offset = here[:, None] * (GROUP * COUT) + lane_out[None, :]
        dy_ptrs = dy_ptr + start.to(tl.int64) * (GROUP * COUT) + offset
        dy = tl.load(dy_ptrs, (start + here < rows)[:, None], 0.0)
        total = tl.dot(tl.trans(x), dy, total, input_precision="ieee")
    part = (program * tl.num_programs(1) + step).to(tl.int64) * (WINDOW * CIN * GROUP * COUT)
    offset = lane_in[:, None] * (GROUP * COUT) + lane_out[None, :]
    tl.store(parts_ptr + part + offset, total)


@triton.jit
def _sum_parts(
    parts_ptr, dw_ptr, parts, stride_out, stride_in, stride_row, stride_column,
    CIN: tl.constexpr, COUT: tl.constexpr, WINDOW: tl.constexpr, GROUP: tl.constexpr,
    BLOCK: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Each tap is the sum over programs, and over the pixels of a group that saw it."""
    element = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    channel_out = element % COUT
    channel_in = element // COUT % CIN
    row = element // (3 * CIN * COUT)
    column = element // (CIN * COUT) % 3
    if WINDOW == 1:
        size = 9 * CIN * COUT
        first = element
        shift = 0
    else:
        size = 3 * WINDOW * CIN * GROUP * COUT
        first = ((row * WINDOW + column) * CIN + channel_in) * (GROUP * COUT) + channel_out
        shift = CIN * GROUP * COUT + COUT
    total = tl.zeros((PARTS, BLOCK), tl.float32)
    for round in range(tl.cdiv(parts, PARTS)):
        part = round * PARTS + tl.arange(0, PARTS)
        offset = part.to(tl.int64)[:, None] * size + first[None, :]
        for member in tl.static_range(GROUP):
            part_ptrs = parts_ptr + offset + member * shift
            total += tl.load(part_ptrs, (part < parts)[:, None], 0.0)
    offset = channel_out * stride_out + channel_in * stride_in
    offset += row * stride_row + column * stride_column
    tl.store(dw_ptr + offset, tl.sum(total, 0).to(dw_ptr.dtype.element_ty))
