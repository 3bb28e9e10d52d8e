"""Resampling with antialias, random resized crop and blur of uint8 batches.

All are weighted sums of neighbouring pixels along both axes, and exact on every device: weights are
whole numbers, so that sums of products with grey levels are whole numbers below 2**24, which
float32 holds. A matrix product then gives the same result in any order of summation, on every
device and for every grouping of the samples. To stay exact where float32 products have fewer bits
(TF32, bfloat16), weights are split into two parts of at most 8 bits.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from batchformer.lab.data.transforms.base import (
    apply_where,
    columns,
    require_uint8,
    to_device_async,
    uniform_float,
    uniform_int,
)

#: Weights are at most 2**15, and the weights of one target add up to at most about 2**16.
LARGEST_WEIGHT_BITS, LARGEST_SUM_BITS = 15, 16
_LOW_PART = (1 << 7) - 1
# Samples are processed in slices of at most this many pixels, which bounds the memory of a large
# batch to some hundreds of megabytes.
_PIXELS_AT_ONCE = 1 << 24


class Taps(NamedTuple):
    """The source pixels and weights of each target along one axis, on the CPU."""

    start: Tensor  # (N, T) first source of each of T targets
    weight: Tensor  # (N, T, K) int32 weights of that source and the next ones, times 2**bits
    bits: Tensor  # (N,) fractional bits of the weights


def weighted_sums(x: Tensor, across: Taps, down: Taps) -> Tensor:
    """Weighted sums along rows, rounded to grey levels, then along columns, rounded again.

    Images are (N, C, H, W) uint8. `across` has taps in 0..W - 1 for each column of the result,
    `down` has taps in 0..H - 1 for each row.
    """
    n, channels, height, width = x.shape
    out = x.new_empty(n, channels, down.start.shape[1], across.start.shape[1])
    at_once = max(1, _PIXELS_AT_ONCE // max(1, channels * height * width))
    for first in range(0, n, at_once):
        part = slice(first, first + at_once)
        rows = _along_last(x[part], Taps(*(t[part] for t in across)))
        columns = _along_last(rows.transpose(2, 3), Taps(*(t[part] for t in down)))
        out[part] = columns.transpose(2, 3)
    return out


def _along_last(x: Tensor, taps: Taps) -> Tensor:
    """(N, C, A, B) -> (N, C, A, T)."""
    n, channels, lines, length = x.shape
    matrix = _dense(taps, length, x.device)
    pixels = x.reshape(n, channels * lines, length).float()
    low = matrix & _LOW_PART
    with _without_autocast(x.device.type):
        total = torch.bmm(pixels, (matrix - low).float())
        total = torch.baddbmm(total, pixels, low.float())
    unit = to_device_async(2.0 ** -taps.bits.float(), x.device).view(-1, 1, 1)
    # Scaling by powers of two is exact; one half more makes the truncation a rounding.
    grey = total.mul_(unit).add_(0.5).clamp_(max=255).to(torch.uint8)
    return grey.view(n, channels, lines, -1)


def _without_autocast(device_type: str) -> AbstractContextManager[object]:
    if torch.amp.is_autocast_available(device_type):
        return torch.autocast(device_type, enabled=False)
    return nullcontext()


def _dense(taps: Taps, length: int, device: torch.device) -> Tensor:
    """(N, length, T) int32: the weight of each source in each target."""
    count = taps.weight.shape[2]
    # One more tap of weight 0 serves all sources outside of a target.
    weight = to_device_async(F.pad(taps.weight.transpose(1, 2), (0, 0, 0, 1)), device)
    offset = (
        torch.arange(length, device=device)[:, None] - to_device_async(taps.start, device)[:, None]
    )
    offset = offset.where((offset >= 0) & (offset < count), count)
    return weight.gather(1, offset)


# Bilinear resampling with antialias. The fixed-point weights and the two roundings, after the
# horizontal and after the vertical pass, are those of torchvision's resize of uint8 images on the
# CPU. Results are torchvision's to the bit, on every device, if each axis is reduced by a factor of
# up to 4; beyond that, weights have fewer bits here, and a few pixels differ by one grey level.

#: Up to this reduction of an axis, results are torchvision's to the bit.
MOST_EQUAL = 4


def resized_crop(x: Tensor, box: Tensor, size: tuple[int, int]) -> Tensor:
    """A box (N, 4) of each sample, resampled to one size.

    Boxes are on the CPU: top, left, height and width, inside the image.
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
    """Whether torch's kernel, many times faster on the CPU, gives the same bits.

    It fails on images one pixel wide, and beyond `MOST_EQUAL` our weights have fewer bits.
    """
    return all(b > 1 and a > 1 and b <= MOST_EQUAL * a for b, a in zip(before, after, strict=True))


def triangle(start: Tensor, length: Tensor, targets: int) -> Taps:
    """Taps of the triangle filter for intervals of one axis.

    An interval begins at the source `start` (N,), on the CPU, and has `length` (N,) sources. The
    triangle is two pixels wide, of the source or of the target, whichever are larger, and is cut at
    the ends of the interval.
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
    """Resample whole images: `size` is the shorter side, or rows and columns."""

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
                f"put Resize({self.size}) or larger before CentreCrop"
            )
        # Python rounds halves to even numbers, as torchvision does.
        top, left = round((height - self.size) / 2), round((width - self.size) / 2)
        return x[..., top : top + self.size, left : left + self.size]


# Random resized crop.

#: Attempts to draw a box that fits.
ATTEMPTS = 10


def random_boxes(
    u: Tensor, height: int, width: int, scale: tuple[float, float], ratio: tuple[float, float]
) -> Tensor:
    """Boxes (N, 4) as torchvision draws them: top, left, height and width.

    The first attempt whose box fits inside the image counts. If none does, the box is the largest
    central one with an allowed ratio.

    Args:
        u: (N, 22) numbers: ten for areas, ten for ratios, and two for the place.
        scale: smallest and largest area, as a share of the image.
        ratio: smallest and largest width / height; its logarithm is uniform.
    """
    area = height * width * uniform_float(u[:, :ATTEMPTS], *scale)
    shape = uniform_float(
        u[:, ATTEMPTS : 2 * ATTEMPTS], math.log(ratio[0]), math.log(ratio[1])
    ).exp()
    wide, high = (area * shape).sqrt().round().long(), (area / shape).sqrt().round().long()
    fits = (wide > 0) & (wide <= width) & (high > 0) & (high <= height)
    central = torch.tensor(central_box(height, width, ratio))
    boxes = first_fitting(high, wide, fits, u[:, -2:], height, width)
    return boxes.where(fits.any(1, keepdim=True), central)


def first_fitting(
    high: Tensor, wide: Tensor, fits: Tensor, place: Tensor, height: int, width: int
) -> Tensor:
    """Boxes (N, 4), top, left, height and width, of the first of A attempts that fits.

    Attempts are heights and widths (N, A); a row in which none fits gives the first. `place` (N, 2)
    are uniform numbers for the position.
    """
    first = fits.int().argmax(1, keepdim=True)
    wide, high = wide.gather(1, first).squeeze(1), high.gather(1, first).squeeze(1)
    top = uniform_int(place[:, 0], height - high + 1)
    left = uniform_int(place[:, 1], width - wide + 1)
    return torch.stack([top, left, high, wide], 1)


def central_box(height: int, width: int, ratio: tuple[float, float]) -> tuple[int, int, int, int]:
    """Top, left, height and width of the largest central box of an allowed ratio.

    >>> central_box(100, 300, (3 / 4, 4 / 3))
    (0, 83, 100, 133)
    """
    high, wide = height, width
    if width / height < ratio[0]:
        high = round(width / ratio[0])
    elif width / height > ratio[1]:
        wide = round(height * ratio[1])
    return (height - high) // 2, (width - wide) // 2, high, wide


@dataclass(frozen=True)
class RandomResizedCrop:
    """A random box of each sample, resampled to a square of side `size`."""

    size: int
    scale: tuple[float, float] = (0.08, 1.0)  # smallest and largest share of the image in the box
    ratio: tuple[float, float] = (3 / 4, 4 / 3)  # smallest and largest width / height of the box
    draws: ClassVar[int] = 2 * ATTEMPTS + 2

    def __call__(self, x: Tensor, u: Tensor) -> Tensor:
        columns(self, x, u)
        height, width = x.shape[-2:]
        boxes = random_boxes(u, height, width, self.scale, self.ratio)
        return resized_crop(x, boxes, (self.size, self.size))


# Gaussian blur.


def gaussian_blur(x: Tensor, sigma: Tensor, kernel_size: int) -> Tensor:
    """Blur `x` (N, C, H, W) uint8 by Gaussians of deviation `sigma` (N,), on the CPU, in pixels.

    The kernel and the reflected border are torchvision's. Rows are blurred first and then columns,
    with grey levels rounded after each; torchvision sums over both at once in floating point, which
    differs by at most one grey level.
    """
    require_uint8("Blur", x)
    height, width = x.shape[-2:]
    radius = kernel_size // 2
    if min(height, width) <= radius:
        raise ValueError(
            f"images of {height} x {width} are too small to reflect the {radius} pixels that a "
            f"kernel of {kernel_size} needs on each side; use larger images or a smaller sigma"
        )
    offset = torch.arange(-radius, radius + 1) / sigma.double()[:, None]
    kernel = (-0.5 * offset**2).exp()
    kernel = kernel / kernel.sum(1, keepdim=True)
    fixed = (kernel * 2.0**LARGEST_WEIGHT_BITS).round().int()
    padded = x.index_select(2, _reflected(height, radius, x.device))
    padded = padded.index_select(3, _reflected(width, radius, x.device))
    return weighted_sums(padded, _taps(fixed, width), _taps(fixed, height))


def _taps(kernel: Tensor, length: int) -> Taps:
    """Taps with the same kernel (N, K) for all targets of one axis."""
    n, size = kernel.shape
    start = torch.arange(length).expand(n, length)
    bits = torch.full((n,), LARGEST_WEIGHT_BITS)
    return Taps(start, kernel[:, None].expand(n, length, size), bits)


def _reflected(length: int, radius: int, device: torch.device) -> Tensor:
    """Sources of one axis, with `radius` more on each side, mirrored at the outermost pixels."""
    place = torch.arange(-radius, length + radius, device=device).abs()
    return length - 1 - (length - 1 - place).abs()


@dataclass(frozen=True)
class GaussianBlur:
    """Blur each sample with probability `p`, by a deviation uniform in `sigma`.

    The kernel covers three of the largest deviations on each side.
    """

    sigma: tuple[float, float] = (0.1, 2.0)  # smallest and largest deviation in pixels
    p: float = 0.5
    draws: ClassVar[int] = 2

    def __post_init__(self) -> None:
        if not 0 < self.sigma[0] <= self.sigma[1]:
            raise ValueError(f"sigma must be positive and smallest first, got {self.sigma}")

    def __call__(self, x: Tensor, u: Tensor) -> Tensor:
        chance, number = columns(self, x, u)
        size = 2 * math.ceil(3 * self.sigma[1]) + 1
        sigma = uniform_float(number, *self.sigma)
        return apply_where(x, chance < self.p, lambda y, s: gaussian_blur(y, s, size), sigma)
