"""Bilinear resampling with antialias of boxes in uint8 batches, a box for each sample.

Weights are those of torchvision's resize of uint8 images on the CPU, in fixed point, and so are
the two roundings, after the horizontal and after the vertical pass. Results are torchvision's to
the bit, on every device, for reductions of each axis by a factor of up to 4; beyond, where weights
have fewer bits here, a few pixels differ by one grey level.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from batchformer.lab.data.transforms.contract import require_uint8
from batchformer.lab.data.transforms.separable import (
    LARGEST_SUM_BITS,
    LARGEST_WEIGHT_BITS,
    Taps,
    weighted_sums,
)

#: The reduction of an axis up to which results are torchvision's to the bit.
MOST_EQUAL = 4


def resized_crop(x: Tensor, box: Tensor, size: tuple[int, int]) -> Tensor:
    """A box of each sample, resampled to one size.

    Args:
        x: (N, C, H, W) uint8.
        box: (N, 4) on the CPU: top, left, height and width, inside the image.
        size: rows and columns of the result.
    """
    require_uint8("Resampling", x)
    top, left, height, width = box.unbind(1)
    return weighted_sums(x, triangle(left, width, size[1]), triangle(top, height, size[0]))


def resize(x: Tensor, size: tuple[int, int]) -> Tensor:
    """Whole images (N, C, H, W) uint8, resampled to `size` rows and columns."""
    require_uint8("Resampling", x)
    n, _, height, width = x.shape
    if (height, width) == tuple(size):
        return x
    if x.device.type == "cpu" and _torch_agrees((height, width), size):
        return F.interpolate(x, size, mode="bilinear", antialias=True)
    start = torch.zeros(1, dtype=torch.long)
    down = triangle(start, start + height, size[0])
    across = triangle(start, start + width, size[1])
    across, down = (Taps(*(t.expand(n, *t.shape[1:]) for t in axis)) for axis in (across, down))
    return weighted_sums(x, across, down)


def _torch_agrees(before: tuple[int, int], after: tuple[int, int]) -> bool:
    """Whether torch's own kernel, many times faster on the CPU, gives the same bits.

    It fails on images one pixel wide, and beyond some reduction our weights have fewer bits.
    """
    return all(b > 1 and a > 1 and b <= MOST_EQUAL * a for b, a in zip(before, after, strict=True))


def triangle(start: Tensor, length: Tensor, targets: int) -> Taps:
    """Taps of the triangle filter for intervals of one axis.

    The triangle is as wide as two pixels of the source or of the target, whichever are larger, and
    is cut off at the ends of the interval.

    Args:
        start: (N,) first source of each interval, on the CPU.
        length: (N,) sources in each interval.
        targets: how many targets an interval is resampled to.
    """
    scale = length.double()[:, None] / targets
    support = scale.clamp(min=1)
    centre = scale * (torch.arange(targets) + 0.5)
    first = (centre - support + 0.5).clamp(min=0).long()
    last = (centre + support + 0.5).long().minimum(length[:, None])
    count = int((last - first).max()) if len(length) else 1
    source = first[..., None] + torch.arange(count)
    distance = (source - centre[..., None] + 0.5) * (1 / support)[..., None]
    weight = (1 - distance.abs()).clamp(min=0).where(source < last[..., None], 0)
    weight = weight / weight.sum(2, keepdim=True)
    bits = _bits(weight.flatten(1).amax(1))
    fixed = (weight * 2.0 ** bits.view(-1, 1, 1) + 0.5).int()
    return Taps(first + start[:, None], fixed, bits)


def _bits(largest: Tensor) -> Tensor:
    """(N,) as many bits as keep the largest weight below 2**15, as torchvision chooses them."""
    doubled = largest[:, None] * 2.0 ** torch.arange(1, LARGEST_SUM_BITS + 1)
    return ((doubled + 0.5).floor() < 1 << LARGEST_WEIGHT_BITS).sum(1)


def shorter_side(height: int, width: int, size: int) -> tuple[int, int]:
    """Rows and columns once the shorter side is `size`, the longer one rounded down.

    >>> shorter_side(300, 401, 256)
    (256, 342)
    """
    longer = int(size * max(height, width) / min(height, width))
    return (size, longer) if height <= width else (longer, size)


@dataclass(frozen=True)
class Resize:
    """Resample whole batches: an int is the shorter side, two are rows and columns."""

    size: int | tuple[int, int]
    draws: ClassVar[int] = 0

    def __call__(self, x: Tensor, u: Tensor | None = None) -> Tensor:
        height, width = x.shape[-2:]
        if isinstance(self.size, int):
            return resize(x, shorter_side(height, width, self.size))
        return resize(x, self.size)


@dataclass(frozen=True)
class CentreCrop:
    """The square of side `size` in the middle of each image, any dtype."""

    size: int
    draws: ClassVar[int] = 0

    def __call__(self, x: Tensor, u: Tensor | None = None) -> Tensor:
        height, width = x.shape[-2:]
        if min(height, width) < self.size:
            raise ValueError(
                f"images of {height} x {width} have no central square of {self.size}; "
                f"put Resize({self.size}) or more before CentreCrop"
            )
        # Python's rounding of halves to even numbers, as torchvision's.
        top, left = round((height - self.size) / 2), round((width - self.size) / 2)
        return x[..., top : top + self.size, left : left + self.size]
