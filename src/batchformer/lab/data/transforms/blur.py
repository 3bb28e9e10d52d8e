"""Gaussian blur of uint8 batches, a width for each sample.

The kernel and the reflected border are torchvision's. The blur is made along rows and then along
columns, with weights in fixed point and grey levels rounded after each, alike on every device;
torchvision sums over both at once in floating point, which differs by at most one grey level.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from batchformer.lab.data.transforms.contract import columns, require_uint8
from batchformer.lab.data.transforms.grouped import apply_where
from batchformer.lab.data.transforms.separable import LARGEST_WEIGHT_BITS, Taps, weighted_sums
from batchformer.lab.data.transforms.uniform import between


def gaussian_blur(x: Tensor, sigma: Tensor, kernel_size: int) -> Tensor:
    """Blur `x` (N, C, H, W) uint8 by Gaussians of deviation `sigma` (N,), on the CPU, in pixels.

    Args:
        x: images, larger than half the kernel.
        sigma: positive.
        kernel_size: odd number of pixels along one axis that are summed.
    """
    require_uint8("Blur", x)
    height, width = x.shape[-2:]
    radius = kernel_size // 2
    if min(height, width) <= radius:
        raise ValueError(
            f"images of {height} x {width} are too small to reflect the {radius} pixels that a "
            f"kernel of {kernel_size} needs on each side; set a smaller kernel_size"
        )
    offset = torch.arange(-radius, radius + 1) / sigma.double()[:, None]
    kernel = (-0.5 * offset**2).exp()
    kernel = kernel / kernel.sum(1, keepdim=True)
    fixed = (kernel * 2.0**LARGEST_WEIGHT_BITS).round().int()
    padded = x.index_select(2, _reflected(height, radius, x.device))
    padded = padded.index_select(3, _reflected(width, radius, x.device))
    return weighted_sums(padded, _taps(fixed, width), _taps(fixed, height))


def _taps(kernel: Tensor, length: int) -> Taps:
    """The same kernel (N, K) for all targets of one axis."""
    n, size = kernel.shape
    start = torch.arange(length).expand(n, length)
    bits = torch.full((n,), LARGEST_WEIGHT_BITS)
    return Taps(start, kernel[:, None].expand(n, length, size), bits)


def _reflected(length: int, radius: int, device: torch.device) -> Tensor:
    """Sources of one axis, with `radius` more on each side, mirrored at the outermost pixels."""
    place = torch.arange(-radius, length + radius, device=device).abs()
    return length - 1 - (length - 1 - place).abs()


def kernel_size_for(sigma: float) -> int:
    """The smallest odd number of pixels that reaches three deviations to each side.

    >>> kernel_size_for(2.0)
    13
    """
    return 2 * math.ceil(3 * sigma) + 1


@dataclass(frozen=True)
class GaussianBlur:
    """Blur each sample with probability `p`, by a deviation uniform in `sigma`.

    Args:
        sigma: smallest and largest deviation in pixels.
        p: probability that a sample is blurred.
        kernel_size: pixels along one axis, odd; None reaches three of the largest deviations.
    """

    sigma: tuple[float, float] = (0.1, 2.0)
    p: float = 0.5
    kernel_size: int | None = None
    draws: ClassVar[int] = 2

    def __post_init__(self) -> None:
        if not 0 < self.sigma[0] <= self.sigma[1]:
            raise ValueError(f"sigma must be positive and smallest first, got {self.sigma}")
        if self.kernel_size is not None and (self.kernel_size < 1 or self.kernel_size % 2 == 0):
            raise ValueError(f"kernel_size must be odd and positive, got {self.kernel_size}")

    def __call__(self, x: Tensor, u: Tensor) -> Tensor:
        chance, number = columns(self, x, u)
        size = self.kernel_size or kernel_size_for(self.sigma[1])
        sigma = between(number, *self.sigma)
        return apply_where(x, chance < self.p, lambda y, s: gaussian_blur(y, s, size), sigma)
