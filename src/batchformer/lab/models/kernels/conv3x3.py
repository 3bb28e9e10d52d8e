"""3x3 convolution of few channels in channels-last memory, with its gradients, in Triton.

Stride 1, one pixel of zero padding. With pixels flattened to one axis, a tap of the kernel is a
constant shift along it, and the convolution is a product of shifted rows with the weights.
Neighbouring pixels are contiguous in memory, so one row of the product can read a window of four
pixels and give two results. Compared with one tap at a time, that takes two thirds of the loads and
a third more arithmetic, which costs nothing here. Every sum has a fixed order, so the same input
gives the same bits.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from batchformer.kernels.available import processors
from batchformer.lab.models.kernels.batch_norm import Moments


class Tile(NamedTuple):
    """The work of one program."""

    rows: int  # of the product, computed at once
    window: int  # neighbouring pixels that a row reads: 1 (one tap of nine) or 4 (a row of taps)
    group: int  # neighbouring pixels that a row computes: 1, or 2 with a window of 4
    warps: int
    stages: int  # of its pipeline

    def steps(self) -> int:
        """Products that cover the nine taps."""
        return 9 if self.window == 1 else 3

    def fitted(self, width: int) -> Tile:
        """This tile, without pairs if the width of the image is odd."""
        return self._replace(group=1) if width % self.group else self


class GradientSplit(NamedTuple):
    """How the gradient of the weight is split: tile and programs per multiprocessor."""

    tile: Tile
    programs: int


#: By the larger of the two channel counts; the fastest on an H200 at a batch of 512.
FORWARD = {
    16: Tile(256, 4, 2, 4, 1),
    32: Tile(128, 4, 2, 4, 1),
    64: Tile(256, 1, 1, 8, 3),
}
INPUT_GRADIENT = {
    16: Tile(128, 4, 2, 4, 1),
    32: Tile(256, 1, 1, 8, 1),
    64: Tile(256, 1, 1, 8, 3),
}
WEIGHT_GRADIENT = {
    16: GradientSplit(Tile(64, 4, 2, 4, 3), 3),
    32: GradientSplit(Tile(64, 4, 2, 4, 3), 2),
    64: GradientSplit(Tile(128, 1, 1, 4, 3), 2),
}
#: For the kernel that sums parts: columns of Cout channels that a program writes, parts it reads
#: at once, and warps.
SUM_COLUMNS, SUM_PARTS, SUM_WARPS = 2, 32, 4


def conv3x3(x: Tensor, weight: Tensor) -> tuple[Tensor, Moments]:
    """``conv2d(x, weight, padding=1)`` and the moments of the result, for batch normalisation.

    x (N, Cin, H, W) is channels-last, and so is the result, in the type of x; the weight (Cout,
    Cin, 3, 3) has any type and strides. Under autocast x is cast like the input of any convolution;
    the weight is cast as it is read. It has no second derivatives: use `kernels.disabled()` for
    them.
    """
    if torch.is_autocast_enabled(x.device.type):
        x = x.to(torch.get_autocast_dtype(x.device.type))
    tile = FORWARD[max(weight.shape[:2])].fitted(x.shape[3])
    y, moments = _Conv3x3.apply(x, weight)
    return y, Moments(moments, tile.rows * tile.group)


class _Conv3x3(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, weight)
        out, moments = product(x, weight, moments=True)
        ctx.mark_non_differentiable(moments)
        return out, moments

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor | None, _: None) -> tuple[Tensor | None, Tensor | None]:
        if dy is None:
            return None, None
        x, weight = ctx.saved_tensors
        dx = product(dy, weight, transposed=True)[0] if ctx.needs_input_grad[0] else None
        dw = weight_gradient(x, dy, weight) if ctx.needs_input_grad[1] else None
        return dx, dw


def product(
    x: Tensor, weight: Tensor, *, transposed: bool = False, moments: bool = False
) -> tuple[Tensor, Tensor]:
    """The convolution of x (N, C, H, W), or with `transposed` the gradient of its input.

    The latter swaps input and output channels of the weight (Cout, Cin, 3, 3) and rotates it by 180
    degrees. Moments are (2, channels, programs), or empty.
    """
    x = x.contiguous(memory_format=torch.channels_last)
    n, cin, height, width = x.shape
    table = INPUT_GRADIENT if transposed else FORWARD
    tile = table[max(weight.shape[:2])].fitted(width)
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


def weight_gradient(x: Tensor, dy: Tensor, weight: Tensor) -> Tensor:
    """The gradient with respect to the weight (Cout, Cin, 3, 3), in its type and strides.

    x is the input (N, Cin, H, W), dy the gradient of the output (N, Cout, H, W).
    """
    x = x.contiguous(memory_format=torch.channels_last)
    dy = dy.contiguous(memory_format=torch.channels_last)
    n, cin, height, width = x.shape
    cout = weight.shape[0]
    tile, per_processor = WEIGHT_GRADIENT[max(weight.shape[:2])]
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
    # Which tap of the kernel joins a pixel of the window to a pixel of the group.
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
    """Each tap is the sum over programs, and over the pixels of a group that used it."""
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


@triton.jit
def windows(
    x_ptr, start, rows, step,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, C: tl.constexpr,
    WINDOW: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The pixels that rows of the product read in a step, (BLOCK, WINDOW * C); zero outside."""
    lane = tl.arange(0, WINDOW * C)
    if WINDOW == 1:
        tap_row = step // 3
        tap = step % 3 + lane // C
    else:
        tap_row = step
        tap = lane // C
    here = tl.arange(0, BLOCK)
    row = start + here
    # Counted from one pixel outside the image.
    y = row // (WIDTH // GROUP) % HEIGHT + tap_row
    x = (row % (WIDTH // GROUP) * GROUP)[:, None] + tap[None, :]
    inside = ((row < rows) & (y >= 1) & (y <= HEIGHT))[:, None] & (x >= 1) & (x <= WIDTH)
    pixel = (here * GROUP + (tap_row - 1) * WIDTH)[:, None] + (tap - 1)[None, :]
    offset = start.to(tl.int64) * (GROUP * C) + (pixel * C + (lane % C)[None, :])
    return tl.load(x_ptr + offset, inside & (tap < GROUP + 2)[None, :], 0.0)
