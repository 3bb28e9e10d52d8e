"""Geometries: turn one image of any size into a square.

All randomness comes from a row `u` of `draws` uniform numbers in [0, 1), so that the result does
not depend on the process that makes it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

from torch import Tensor

from batchformer.lab.data.transforms.resize import ATTEMPTS, central_box

Interpolation = Literal["bilinear", "bicubic"]


class Geometry(Protocol):
    """Turns each image into a square, before images are stacked into a batch."""

    @property
    def size(self) -> int:
        """S, the side of the result."""

    @property
    def draws(self) -> int:
        """Uniform numbers per image."""

    def __call__(self, image: Tensor, u: Tensor) -> Tensor:
        """An image (3, H, W) and `u` (draws,) float64, to (3, S, S)."""


def random_window(
    height: int, width: int, u: Tensor, scale: tuple[float, float], ratio: tuple[float, float]
) -> tuple[int, int, int, int]:
    """Top, left, height and width of a window, distributed as in torchvision's RandomResizedCrop.

    `u` (22,) are uniform numbers: ten areas, ten aspect ratios, and the place. Area and aspect
    ratio are drawn until the window fits; if none of ten does, it is the largest central one with
    an allowed aspect ratio. `scale` and `ratio` are as in :class:`RandomResizedCrop`; the logarithm
    of the ratio is uniform. `transforms.resize.random_boxes` gives the same boxes from the same
    numbers; for a single image, plain numbers are faster than tensors.
    """
    *shapes, down, right = u.tolist()
    narrow, wide = (math.log(bound) for bound in ratio)
    for to_area, to_aspect in zip(shapes[:ATTEMPTS], shapes[ATTEMPTS:], strict=True):
        area = height * width * (scale[0] + (scale[1] - scale[0]) * to_area)
        aspect = math.exp(narrow + (wide - narrow) * to_aspect)
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            return int(down * (height - h + 1)), int(right * (width - w + 1)), h, w
    return central_box(height, width, ratio)


@dataclass(frozen=True)
class RandomResizedCrop:
    """Resize a random window of the image to a square with antialiasing."""

    size: int = 224
    scale: tuple[float, float] = (0.08, 1.0)  # least and largest part of the image's area
    ratio: tuple[float, float] = (3 / 4, 4 / 3)  # least and largest width over height of the window
    interpolation: Interpolation = "bilinear"
    draws: ClassVar[int] = 2 * ATTEMPTS + 2

    def __call__(self, image: Tensor, u: Tensor) -> Tensor:
        from torchvision.transforms.v2 import InterpolationMode
        from torchvision.transforms.v2 import functional as F

        window = random_window(image.shape[-2], image.shape[-1], u, self.scale, self.ratio)
        mode = InterpolationMode(self.interpolation)
        result: Tensor = F.resized_crop(
            image, *window, size=[self.size, self.size], interpolation=mode, antialias=True
        )
        return result


@dataclass(frozen=True)
class ResizeCentreCrop:
    """Resize the shorter side, or both, with antialiasing, and cut the central square."""

    size: int = 224
    shorter: int = 256  # the shorter side after resizing, at least S
    both: bool = False  # resize the longer side to the same length, whatever the image's shape
    interpolation: Interpolation = "bilinear"
    draws: ClassVar[int] = 0

    def __post_init__(self) -> None:
        if not 0 < self.size <= self.shorter:
            raise ValueError(
                f"a square of side {self.size} does not fit into an image whose shorter side is "
                f"{self.shorter}: resize to a longer side, or cut a smaller square"
            )

    def __call__(self, image: Tensor, u: Tensor) -> Tensor:
        from torchvision.transforms.v2 import functional as F

        image = _resize(image, [self.shorter] * (2 if self.both else 1), self.interpolation)
        result: Tensor = F.center_crop(image, [self.size, self.size])
        return result


@dataclass(frozen=True)
class ResizeWhole:
    """Resize the whole image to a square with antialiasing, whatever its shape; for testing."""

    size: int = 224
    draws: ClassVar[int] = 0

    def __call__(self, image: Tensor, u: Tensor) -> Tensor:
        return _resize(image, [self.size, self.size])


def _resize(image: Tensor, size: list[int], interpolation: Interpolation = "bilinear") -> Tensor:
    """Resize as torchvision does: one number is the shorter side, two are rows and columns."""
    from torchvision.transforms.v2 import InterpolationMode
    from torchvision.transforms.v2 import functional as F

    mode = InterpolationMode(interpolation)
    result: Tensor = F.resize(image, size, interpolation=mode, antialias=True)
    return result
