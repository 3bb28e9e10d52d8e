"""Random resized crop of uint8 batches: boxes of random area and shape, resampled to one size."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from batchformer.lab.data.transforms.contract import columns
from batchformer.lab.data.transforms.resample import resized_crop
from batchformer.lab.data.transforms.uniform import between, whole

#: How often a box may fail to fit before the central one is taken.
ATTEMPTS = 10


def random_boxes(
    u: Tensor, height: int, width: int, scale: tuple[float, float], ratio: tuple[float, float]
) -> Tensor:
    """Boxes (N, 4) as torchvision draws them: top, left, height and width.

    The first attempt whose box fits inside the image counts. Where none does, the box is the
    largest central one of an allowed ratio.

    Args:
        u: (N, 22) numbers: ten for areas, ten for ratios, and two for the place.
        height: rows of the images.
        width: columns of the images.
        scale: smallest and largest area, as a share of the image.
        ratio: smallest and largest width / height; its logarithm is uniform.
    """
    area = height * width * between(u[:, :ATTEMPTS], *scale)
    shape = between(u[:, ATTEMPTS : 2 * ATTEMPTS], math.log(ratio[0]), math.log(ratio[1])).exp()
    wide, high = (area * shape).sqrt().round().long(), (area / shape).sqrt().round().long()
    fits = (wide > 0) & (wide <= width) & (high > 0) & (high <= height)
    first = fits.int().argmax(1, keepdim=True)
    wide, high = wide.gather(1, first).squeeze(1), high.gather(1, first).squeeze(1)
    top, left = whole(u[:, -2], height - high + 1), whole(u[:, -1], width - wide + 1)
    central = torch.tensor(central_box(height, width, ratio))
    return torch.stack([top, left, high, wide], 1).where(fits.any(1, keepdim=True), central)


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
    """A random box of each sample, resampled to a square of side `size`.

    Args:
        size: side of the result.
        scale: smallest and largest area of the box, as a share of the image.
        ratio: smallest and largest width / height of the box.
    """

    size: int
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    draws: ClassVar[int] = 2 * ATTEMPTS + 2

    def __call__(self, x: Tensor, u: Tensor) -> Tensor:
        columns(self, x, u)
        height, width = x.shape[-2:]
        boxes = random_boxes(u, height, width, self.scale, self.ratio)
        return resized_crop(x, boxes, (self.size, self.size))
