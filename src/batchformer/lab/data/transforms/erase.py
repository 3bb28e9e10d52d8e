"""Cutout and random erasing over whole batches."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from batchformer.lab.data.transforms.base import (
    apply_where,
    columns,
    to_device_async,
    uniform_float,
    uniform_int,
)
from batchformer.lab.data.transforms.resize import ATTEMPTS, first_fitting


def cutout(x: Tensor, row: Tensor, column: Tensor, side: int) -> Tensor:
    """Set a square of zeros: rows and columns from centre - side // 2 to centre + side // 2 - 1.

    Centres are rows (N,) and columns (N,). Any dtype. The hole is clipped at the borders of the
    image, so a hole near a border is smaller.
    """
    half = side // 2
    length = torch.full_like(row, 2 * half)
    boxes = torch.stack([row - half, column - half, length, length], 1)
    return x.masked_fill(_inside(boxes, x), 0)


def _inside(boxes: Tensor, x: Tensor) -> Tensor:
    """(N, 1, H, W) bool: which pixels of `x` are in boxes (N, 4), top, left, height and width."""
    top, left, high, wide = to_device_async(boxes, x.device)[..., None].unbind(1)
    row = torch.arange(x.shape[-2], device=x.device)
    column = torch.arange(x.shape[-1], device=x.device)
    rows = (row >= top) & (row < top + high)
    across = (column >= left) & (column < left + wide)
    return rows[:, None, :, None] & across[:, None, None, :]


@dataclass(frozen=True)
class Cutout:
    """One square hole of zeros per sample, its centre uniform over the image.

    It belongs before normalisation.
    """

    side: int = 16
    draws: ClassVar[int] = 2

    def __call__(self, x: Tensor, u: Tensor) -> Tensor:
        row, column = columns(self, x, u)
        return cutout(x, uniform_int(row, x.shape[-2]), uniform_int(column, x.shape[-1]), self.side)


# Random erasing.

#: Quantiles in the table of `keyed_noise`. The largest is 4.0; the table is just small enough for
#: `to_device_async` to copy it without pinned memory.
QUANTILES = 1 << 14
# The increment of the golden ratio, and the multipliers of MurmurHash3's last step, as int32.
_INCREMENT, _FIRST, _SECOND = 0x9E3779B1 - (1 << 32), 0x85EBCA6B - (1 << 32), 0xC2B2AE35 - (1 << 32)


def boxes_to_erase(
    u: Tensor, height: int, width: int, area: tuple[float, float], aspect: float
) -> Tensor:
    """Boxes (N, 4) as timm draws them: top, left, height and width; zeros where none was found.

    The first of ten attempts whose box is smaller than the image in both directions counts.

    Args:
        u: (N, 22) numbers: ten for areas, ten for shapes, and two for the place.
        area: smallest and largest area, as a share of the image.
        aspect: smallest height / width; the largest is its reciprocal, the logarithm is uniform.
    """
    size = height * width * uniform_float(u[:, :ATTEMPTS], *area)
    bound = abs(math.log(aspect))
    shape = uniform_float(u[:, ATTEMPTS : 2 * ATTEMPTS], -bound, bound).exp()
    high, wide = (size * shape).sqrt().round().long(), (size / shape).sqrt().round().long()
    fits = (wide < width) & (high < height)
    boxes = first_fitting(high, wide, fits, u[:, -2:], height, width)
    return boxes * fits.any(1, keepdim=True)


def keyed_noise(key: Tensor, shape: tuple[int, ...], device: torch.device) -> Tensor:
    """Standard normal numbers (N, *shape), float32, that depend on each row's key alone.

    Keys are (N,) int32 on the CPU. A hash of the key and of the position of a number selects an
    entry of a table of quantiles, so that the noise is the same on every device to the bit, without
    a generator of the device.
    """
    place = torch.arange(math.prod(shape), dtype=torch.int32, device=device)
    mixed = to_device_async(key, device)[:, None] + place * _INCREMENT  # int32 wraps around
    mixed = (mixed ^ _shifted(mixed, 16)) * _FIRST
    mixed = (mixed ^ _shifted(mixed, 13)) * _SECOND
    mixed = mixed ^ _shifted(mixed, 16)
    rows = (mixed & (QUANTILES - 1)).flatten()
    return to_device_async(_quantiles(), device).index_select(0, rows).view(len(key), *shape)


def _shifted(value: Tensor, bits: int) -> Tensor:
    """Shift right with zeros from the left; `>>` of signed numbers repeats the sign."""
    return (value >> bits) & ((1 << (32 - bits)) - 1)


@lru_cache
def _quantiles() -> Tensor:
    """(QUANTILES,) equally likely quantiles of the standard normal distribution."""
    middle = (torch.arange(QUANTILES, dtype=torch.float64) + 0.5) / QUANTILES
    quantiles: Tensor = torch.special.ndtri(middle)
    return quantiles.float()


def erase(x: Tensor, boxes: Tensor, key: Tensor) -> Tensor:
    """Replace a box of each sample (N, C, H, W), normalised, by noise.

    Boxes (N, 4), which are top, left, height and width, and the keys (N,) int32 of the noise are on
    the CPU.
    """
    noise = keyed_noise(key, tuple(x.shape[1:]), x.device).to(x.dtype)
    return torch.where(_inside(boxes, x), noise, x)


@dataclass(frozen=True)
class RandomErasing:
    """Random erasing (Zhong et al., 2020): a box of noise in some samples, after normalisation.

    Each pixel gets its own standard normal noise, as in timm's mode ``pixel``.
    """

    p: float = 0.25
    area: tuple[float, float] = (0.02, 1 / 3)  # smallest and largest share of the image in the box
    aspect: float = 0.3  # smallest height / width; its reciprocal is the largest
    draws: ClassVar[int] = 2 * ATTEMPTS + 4

    def __call__(self, x: Tensor, u: Tensor) -> Tensor:
        columns(self, x, u)
        if not x.is_floating_point():
            raise TypeError(
                f"RandomErasing needs normalised images, got {x.dtype}; put it after Normalise"
            )
        height, width = x.shape[-2:]
        boxes = boxes_to_erase(u[:, 1:-1], height, width, self.area, self.aspect)
        key = (uniform_int(u[:, -1], 1 << 32) - (1 << 31)).int()
        return apply_where(x, u[:, 0] < self.p, erase, boxes, key)
