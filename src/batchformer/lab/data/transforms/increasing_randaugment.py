"""RandAugment as in timm and DeiT, over whole batches of uint8 images.

It differs from torchvision's: it has invert and solarize-add, and no identity; all magnitudes grow
with the level from 0 to 10; the level of each operation is noisy; and each operation is skipped
with a probability. Warps take the nearest pixel and shift by whole pixels; timm's interpolate.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from batchformer.lab.data.transforms.base import columns, uniform_int
from batchformer.lab.data.transforms.color import IDENTITY, OPERATIONS, apply_in_sequence

#: The strongest level.
LARGEST = 10.0
#: In timm's order.
CHOICES = (
    "autocontrast",
    "equalize",
    "invert",
    "rotate",
    "posterize",
    "solarize",
    "solarize_add",
    "color",
    "contrast",
    "brightness",
    "sharpness",
    "shear_x",
    "shear_y",
    "translate_x",
    "translate_y",
)
#: The mean colour of ImageNet, for pixels from outside the image.
MEAN_COLOUR = (124, 116, 104)
_CODES = torch.tensor([OPERATIONS.index(name) for name in CHOICES])
_LARGEST_ANGLE, _LARGEST_SLOPE, _LARGEST_SHIFT = 30.0, 0.3, 0.45
_LARGEST_CHANGE, _LEAST_FACTOR = 0.9, 0.1
_BITS, _LEVELS, _LARGEST_ADDITION = 4, 256, 110


def magnitudes(level: Tensor, negative: Tensor, height: int, width: int) -> Tensor:
    """Parameters of all operations of `CHOICES` at a level.

    Args:
        level: (...) 0..10, float64.
        negative: (...) bool, whether to negate signed parameters.

    Returns:
        (15, ...) parameters for `apply_in_sequence`.
    """
    share = level / LARGEST
    sign = torch.where(negative, -1.0, 1.0).to(share.dtype)
    factor = (1 + sign * share * _LARGEST_CHANGE).clamp(min=_LEAST_FACTOR)
    none = torch.zeros_like(share)
    slope = sign * share * _LARGEST_SLOPE
    values = {
        "rotate": sign * share * _LARGEST_ANGLE,
        "posterize": _BITS - (share * _BITS).trunc(),
        "solarize": _LEVELS - (share * _LEVELS).trunc(),
        "solarize_add": (share * _LARGEST_ADDITION).trunc(),
        **dict.fromkeys(("color", "contrast", "brightness", "sharpness"), factor),
        **dict.fromkeys(("shear_x", "shear_y"), slope),
        "translate_x": (sign * share * _LARGEST_SHIFT * width).round(),
        "translate_y": (sign * share * _LARGEST_SHIFT * height).round(),
    }
    return torch.stack([values.get(name, none) for name in CHOICES])


@dataclass(frozen=True)
class IncreasingRandAugment:
    """timm's ``rand-m9-mstd0.5-inc1``: two operations per sample, each applied half of the time.

    Args:
        level: mean of the level, 0..10.
        noise: standard deviation of the level; levels beyond 0..10 are cut.
        fill: value of pixels from outside the image, or one for each channel.
    """

    num_ops: int = 2
    level: float = 9.0
    noise: float = 0.5
    p: float = 0.5
    fill: int | tuple[int, ...] = MEAN_COLOUR

    def __post_init__(self) -> None:
        if self.num_ops < 1 or not 0 <= self.level <= LARGEST or self.noise < 0:
            raise ValueError(
                f"at least 1 operation, a level of 0..{LARGEST:g} and noise of 0 or more are "
                f"needed, got {self}"
            )
        if not 0 <= self.p <= 1:
            raise ValueError(f"p is a probability, 0..1, got {self.p}")

    @property
    def draws(self) -> int:
        return 4 * self.num_ops

    def __call__(self, x: Tensor, u: Tensor) -> Tensor:
        columns(self, x, u)
        to_choice, to_applied, to_level, to_sign = torch.split(u.T, self.num_ops)
        choice = uniform_int(to_choice, len(CHOICES))
        level = torch.full_like(to_level, self.level)
        if self.noise:
            # The level of u = 0 is minus infinity before it is cut.
            level = (level + self.noise * torch.special.ndtri(to_level)).clamp(0, LARGEST)
        table = magnitudes(level, to_sign < 0.5, *x.shape[-2:])
        parameter = table.gather(0, choice[None])[0]
        code = _CODES[choice].where(to_applied < self.p, IDENTITY)
        return apply_in_sequence(x, code, parameter, self.fill)
