"""Affine warps of uint8 batches, one parameter per sample.

Each kind of warp is a matrix (N, 2, 3) per batch, so that samples with different kinds are warped
together. Coordinates are in fixed point: every device takes the same pixels. Pixels are those of
torchvision's warps with nearest interpolation, except where a source lies half-way between two
pixels, which may go to the other side.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from batchformer.lab.data.transforms.contract import send

_BITS = 16


def shear_x(slope: Tensor, height: int, width: int) -> Tensor:
    """Move each row left by `slope` (N,) times its distance from the top edge."""
    return _matrix(slope, across=(1, slope, slope * height / 2), down=(0, 1, 0))


def shear_y(slope: Tensor, height: int, width: int) -> Tensor:
    """Move each column up by `slope` (N,) times its distance from the left edge."""
    return _matrix(slope, across=(1, 0, 0), down=(slope, 1, slope * width / 2))


def translate_x(pixels: Tensor, height: int, width: int) -> Tensor:
    """Move to the right by whole `pixels` (N,); a fraction is dropped."""
    return _matrix(pixels, across=(1, 0, -pixels.trunc()), down=(0, 1, 0))


def translate_y(pixels: Tensor, height: int, width: int) -> Tensor:
    """Move down by whole `pixels` (N,); a fraction is dropped."""
    return _matrix(pixels, across=(1, 0, 0), down=(0, 1, -pixels.trunc()))


def rotate(degrees: Tensor, height: int, width: int) -> Tensor:
    """Rotate counter-clockwise by `degrees` (N,) about the centre of the image."""
    angle = degrees.double() * (math.pi / 180)
    cos, sin = angle.cos(), angle.sin()
    return _matrix(degrees, across=(cos, -sin, 0), down=(sin, cos, 0))


def warp(x: Tensor, matrix: Tensor, fill: int | tuple[int, ...] = 0) -> Tensor:
    """Take each pixel from the nearest source pixel, and `fill` where there is none.

    Args:
        x: (N, C, H, W) uint8.
        matrix: (N, 2, 3) on the CPU: source column and row, each `a * w + b * h + c` from the
            centre of the image for a target w columns and h rows from it. It is put into fixed
            point before it is moved, since sines and cosines differ between devices.
        fill: value from outside the image, or one for each of the C channels.
    """
    height, width = x.shape[-2:]
    fixed = send((matrix.double() * (1 << _BITS)).round().int(), x.device)
    # Distances from the centre are counted in half pixels, which are whole numbers.
    w = torch.arange(1 - width, width, 2, dtype=torch.int32, device=x.device)
    h = torch.arange(1 - height, height, 2, dtype=torch.int32, device=x.device)[:, None]
    a, b, c = fixed[..., None, None].unbind(2)
    across, down = (a * w + b * h + 2 * c).unbind(1)
    column = (across + (width << _BITS)) >> (_BITS + 1)
    row = (down + (height << _BITS)) >> (_BITS + 1)
    inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
    source = (row * width + column).where(inside, 0).long().flatten(1)[:, None]
    taken = x.flatten(2).gather(2, source.expand(-1, x.shape[1], -1)).view_as(x)
    if isinstance(fill, int):
        return torch.where(inside[:, None], taken, fill)
    outside = send(torch.tensor(fill, dtype=torch.uint8), x.device).view(1, -1, 1, 1)
    return torch.where(inside[:, None], taken, outside)


def _matrix(
    like: Tensor, across: tuple[Tensor | float, ...], down: tuple[Tensor | float, ...]
) -> Tensor:
    """(N, 2, 3) float64 out of six numbers or tensors (N,)."""
    rows = [torch.as_tensor(value).double().expand_as(like) for value in (*across, *down)]
    return torch.stack(rows, -1).view(-1, 2, 3)
