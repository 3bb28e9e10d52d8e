"""How rows of a product read windows of pixels, and how much of it a program does.

With pixels flattened to one axis, a tap of the kernel is a constant shift along it, and the
convolution is a product of shifted rows with the weights. Pixels side by side are contiguous in
memory, so one row of the product can hold a window of four of them and give a pair of results:
two thirds of the loads of one tap at a time, for a third more arithmetic, which costs nothing
here.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl


class Tile(NamedTuple):
    """How a program works.

    Args:
        rows: rows of the product at once.
        window: pixels side by side that a row reads: 1 (one tap of nine) or 4 (a row of taps).
        group: pixels side by side that a row gives: 1, or 2 with a window of 4.
        warps: of the program.
        stages: tiles in flight.
    """

    rows: int
    window: int
    group: int
    warps: int
    stages: int

    def steps(self) -> int:
        """Products that cover the nine taps."""
        return 9 if self.window == 1 else 3

    def fitted(self, width: int) -> Tile:
        """This tile, without pairs where the image is an odd number of pixels wide."""
        return self._replace(group=1) if width % self.group else self


class Share(NamedTuple):
    """How the gradient of the weight is split: the tile, and programs per multiprocessor."""

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
    16: Share(Tile(64, 4, 2, 4, 3), 3),
    32: Share(Tile(64, 4, 2, 4, 3), 2),
    64: Share(Tile(128, 1, 1, 4, 3), 2),
}


@triton.jit
def windows(
    x_ptr, start, rows, step,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, C: tl.constexpr,
    WINDOW: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """What rows of the product read in a step: (BLOCK, WINDOW * C), zero outside the image."""
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
