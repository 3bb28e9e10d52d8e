"""Crop, flip, rotation and affine warps of whole batches.

Each kind of warp is a matrix (N, 2, 3) per batch, so that samples with different warps are
processed together. Coordinates are in fixed point: every device takes the same pixels. Pixels are
those of torchvision's warps with nearest interpolation, except that a source half-way between two
pixels may go to the other side.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from batchformer.lab.data.transforms.base import (
    columns,
    require_uint8,
    to_device_async,
    uniform_float,
    uniform_int,
)

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
            centre of the image for a target w columns and h rows from it. It becomes fixed point
            before it is moved, since sines and cosines differ between devices.
        fill: value from outside the image, or one for each of the C channels.
    """
    height, width = x.shape[-2:]
    fixed = to_device_async((matrix.double() * (1 << _BITS)).round().int(), x.device)
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
    outside = to_device_async(torch.tensor(fill, dtype=torch.uint8), x.device).view(1, -1, 1, 1)
    return torch.where(inside[:, None], taken, outside)


def _matrix(
    like: Tensor, across: tuple[Tensor | float, ...], down: tuple[Tensor | float, ...]
) -> Tensor:
    """(N, 2, 3) float64 from six numbers or tensors (N,)."""
    rows = [torch.as_tensor(value).double().expand_as(like) for value in (*across, *down)]
    return torch.stack(rows, -1).view(-1, 2, 3)


# Random crop, flip and rotation.


def crop_padded(x: Tensor, top: Tensor, left: Tensor, padding: int) -> Tensor:
    """Windows of the size of the input, cut from images padded with zeros; any dtype.

    `top` and `left` (N,) are the first row and column of each in the padded image, 0..2 * padding.
    """
    n, channels, height, width = x.shape
    padded = F.pad(x, (padding,) * 4)
    rows = to_device_async(top, x.device)[:, None] + torch.arange(height, device=x.device)
    across = to_device_async(left, x.device)[:, None] + torch.arange(width, device=x.device)
    source = rows[:, :, None] * padded.shape[-1] + across[:, None, :]
    source = source.flatten(1)[:, None].expand(-1, channels, -1)
    return padded.flatten(2).gather(2, source).view(n, channels, height, width)


@dataclass(frozen=True)
class RandomCrop:
    """Shift each sample by at most `padding` pixels, filling with zeros."""

    padding: int = 4
    draws: ClassVar[int] = 2

    def __call__(self, x: Tensor, u: Tensor) -> Tensor:
        top, left = (uniform_int(column, 2 * self.padding + 1) for column in columns(self, x, u))
        return crop_padded(x, top, left, self.padding)


@dataclass(frozen=True)
class RandomFlip:
    """Mirror each sample left and right with probability `p`; any dtype."""

    p: float = 0.5
    draws: ClassVar[int] = 1

    def __call__(self, x: Tensor, u: Tensor) -> Tensor:
        (chance,) = columns(self, x, u)
        chosen = to_device_async(chance < self.p, x.device).view(-1, 1, 1, 1)
        return torch.where(chosen, x.flip(-1), x)


@dataclass(frozen=True)
class RandomRotation:
    """Rotate each sample by an angle uniform in [-degrees, degrees], with nearest pixels."""

    degrees: float
    fill: int = 0
    draws: ClassVar[int] = 1

    def __call__(self, x: Tensor, u: Tensor) -> Tensor:
        require_uint8("RandomRotation", x)
        (number,) = columns(self, x, u)
        angle = uniform_float(number, -self.degrees, self.degrees)
        return warp(x, rotate(angle, *x.shape[-2:]), self.fill)
