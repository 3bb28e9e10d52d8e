"""Random rotation of uint8 batches about the centre of the image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from batchformer.lab.data.transforms import warps
from batchformer.lab.data.transforms.contract import columns, require_uint8
from batchformer.lab.data.transforms.uniform import between


@dataclass(frozen=True)
class RandomRotation:
    """Rotate each sample by an angle uniform in [-degrees, degrees], nearest pixels.

    Pixels are torchvision's but for sources half-way between two pixels; see `warps`.
    """

    degrees: float
    fill: int = 0
    draws: ClassVar[int] = 1

    def __call__(self, x: Tensor, u: Tensor) -> Tensor:
        require_uint8("RandomRotation", x)
        (number,) = columns(self, x, u)
        angle = between(number, -self.degrees, self.degrees)
        return warps.warp(x, warps.rotate(angle, *x.shape[-2:]), self.fill)
