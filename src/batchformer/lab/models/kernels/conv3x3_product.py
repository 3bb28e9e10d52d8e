"""The convolution as a product, its moments, and the gradient with respect to its input."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from batchformer.lab.models.kernels.conv3x3_tiles import FORWARD, INPUT_GRADIENT, Tile, windows


def product(
    x: Tensor,
    weight: Tensor,
    *,
    transposed: bool = False,
    moments: bool = False,
    tile: Tile | None = None,
) -> tuple[Tensor, Tensor]:
    """The convolution of x, or with `transposed` the gradient with respect to its input.

    Args:
        x: (N, C, H, W).
        weight: (Cout, Cin, 3, 3); C is Cin, or Cout with `transposed`.
        transposed: exchange input and output channels of the weight and turn it by 180 degrees.
        moments: whether to compute them.
        tile: how to work; by the number of channels where None.

    Returns:
        (N, Cout, H, W), or Cin channels with `transposed`; moments (2, channels, programs).
    """
    x = x.contiguous(memory_format=torch.channels_last)
    n, cin, height, width = x.shape
    tile = tile or (INPUT_GRADIENT if transposed else FORWARD)[max(weight.shape[:2])]
    tile = tile.fitted(width)
    stride_out, stride_in, stride_row, stride_column = weight.stride()
    cout, origin = weight.shape[0], 0
    if transposed:
        cout, stride_out, stride_in = weight.shape[1], stride_in, stride_out
        origin = 2 * (stride_row + stride_column)
        stride_row, stride_column = -stride_row, -stride_column
    y = _empty(x, cout)
    rows = n * height * width // tile.group
    programs = triton.cdiv(rows, tile.rows)
    parts = x.new_empty((2, cout, programs) if moments else 0, dtype=torch.float32)
    with torch.cuda.device_of(x):
        _product[(programs,)](
            x, weight, y, parts, rows, origin, stride_in, stride_out, stride_row, stride_column,
            HEIGHT=height, WIDTH=width, CIN=cin, COUT=cout,
            WINDOW=tile.window, GROUP=tile.group, STEPS=tile.steps(), BLOCK=tile.rows,
            MOMENTS=moments, num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
    return y, parts


def _empty(x: Tensor, channels: int) -> Tensor:
    """Uninitialised (N, channels, H, W) in channels-last memory, otherwise like x."""
    shape = (x.shape[0], channels, *x.shape[2:])
    return torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)


@triton.jit
def _product(
    x_ptr, w_ptr, y_ptr, moments_ptr, rows, origin,
    stride_in, stride_out, stride_row, stride_column,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CIN: tl.constexpr, COUT: tl.constexpr,
    WINDOW: tl.constexpr, GROUP: tl.constexpr, STEPS: tl.constexpr, BLOCK: tl.constexpr,
    MOMENTS: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    start = program * BLOCK
    lane_in = tl.arange(0, WINDOW * CIN)
    lane_out = tl.arange(0, GROUP * COUT)
    channels = (lane_in % CIN * stride_in)[:, None] + (lane_out % COUT * stride_out)[None, :]
    # The tap that a pixel of the window is to a pixel of the group.
    tap = (lane_in // CIN)[:, None] - (lane_out // COUT)[None, :]
    total = tl.zeros((BLOCK, GROUP * COUT), tl.float32)
    for step in range(STEPS):
        x = windows(x_ptr, start, rows, step, HEIGHT, WIDTH, CIN, WINDOW, GROUP, BLOCK)
        if WINDOW == 1:
            w_ptrs = w_ptr + (origin + step // 3 * stride_row + step % 3 * stride_column) + channels
            w = tl.load(w_ptrs)
        else:
            w_ptrs = w_ptr + (origin + step * stride_row) + (tap * stride_column + channels)
            w = tl.load(w_ptrs, (tap >= 0) & (tap < 3), 0.0)
        total = tl.dot(x, w.to(x.dtype), total, input_precision="ieee")
    here = tl.arange(0, BLOCK)
    inside = (start + here < rows)[:, None]
    y = total.to(y_ptr.dtype.element_ty)
    offset = start.to(tl.int64) * (GROUP * COUT) + (
        here[:, None] * (GROUP * COUT) + lane_out[None, :]
    )
    tl.store(y_ptr + offset, y, inside)
    if MOMENTS:
        count = (tl.minimum(rows - start, BLOCK) * GROUP).to(tl.float32)
        seen = y.to(tl.float32)
        mean = tl.sum(tl.reshape(tl.sum(seen, 0), (GROUP, COUT)), 0) / count
        means = tl.reshape(tl.broadcast_to(mean[None, :], (GROUP, COUT)), (GROUP * COUT,))
        apart = tl.where(inside, seen - means[None, :], 0.0)
        squares = tl.sum(tl.reshape(tl.sum(apart * apart, 0), (GROUP, COUT)), 0)
        programs = tl.num_programs(0)
        channel = tl.arange(0, COUT)
        tl.store(moments_ptr + channel * programs + program, mean)
        tl.store(moments_ptr + (COUT + channel) * programs + program, squares)
