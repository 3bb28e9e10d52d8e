"""AutoAugment, and RandAugment as in torchvision and as in timm, of whole uint8 batches."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from batchformer.lab.data.transforms.base import columns, uniform_int
from batchformer.lab.data.transforms.color import (
    ENHANCEMENTS,
    IDENTITY,
    OPERATIONS,
    WARPS,
    apply_in_sequence,
)

#: The policy found on CIFAR-10: 25 pairs of (operation, probability, bin of 10); the bin is 0 if an
#: operation has no magnitude.
POLICY: tuple[tuple[tuple[str, float, int], tuple[str, float, int]], ...] = (
    (("invert", 0.1, 0), ("contrast", 0.2, 6)),
    (("rotate", 0.7, 2), ("translate_x", 0.3, 9)),
    (("sharpness", 0.8, 1), ("sharpness", 0.9, 3)),
    (("shear_y", 0.5, 8), ("translate_y", 0.7, 9)),
    (("autocontrast", 0.5, 0), ("equalize", 0.9, 0)),
    (("shear_y", 0.2, 7), ("posterize", 0.3, 7)),
    (("color", 0.4, 3), ("brightness", 0.6, 7)),
    (("sharpness", 0.3, 9), ("brightness", 0.7, 9)),
    (("equalize", 0.6, 0), ("equalize", 0.5, 0)),
    (("contrast", 0.6, 7), ("sharpness", 0.6, 5)),
    (("color", 0.7, 7), ("translate_x", 0.5, 8)),
    (("equalize", 0.3, 0), ("autocontrast", 0.4, 0)),
    (("translate_y", 0.4, 3), ("sharpness", 0.2, 6)),
    (("brightness", 0.9, 6), ("color", 0.2, 8)),
    (("solarize", 0.5, 2), ("invert", 0.0, 0)),
    (("equalize", 0.2, 0), ("autocontrast", 0.6, 0)),
    (("equalize", 0.2, 0), ("equalize", 0.6, 0)),
    (("color", 0.9, 9), ("equalize", 0.6, 0)),
    (("autocontrast", 0.8, 0), ("solarize", 0.2, 8)),
    (("brightness", 0.1, 3), ("color", 0.7, 0)),
    (("solarize", 0.4, 5), ("autocontrast", 0.9, 0)),
    (("translate_y", 0.9, 9), ("translate_y", 0.7, 9)),
    (("autocontrast", 0.9, 0), ("solarize", 0.8, 3)),
    (("equalize", 0.8, 0), ("invert", 0.1, 0)),
    (("translate_y", 0.7, 9), ("autocontrast", 0.9, 0)),
)

# Magnitudes, as in torchvision.

# The policies were searched with shifts of up to 150 pixels of an image of 331.
_LARGEST_SHIFT = 150 / 331
#: Magnitudes of the first and of the last bin; shifts are given as a share of the side.
_ENDS = {
    **dict.fromkeys(("shear_x", "shear_y"), (0.0, 0.3)),
    **dict.fromkeys(("translate_x", "translate_y"), (0.0, _LARGEST_SHIFT)),
    "rotate": (0.0, 30.0),
    **dict.fromkeys(ENHANCEMENTS, (0.0, 0.9)),
    "solarize": (255.0, 0.0),
}


def magnitudes(operation: str, height: int, width: int, bins: int) -> Tensor:
    """(bins,) float64 magnitude of each bin of an operation, before the sign."""
    # In float32 first, as torchvision does: a shift is truncated, so the last bit can matter.
    if operation == "posterize":
        return (8 - (torch.arange(bins) / ((bins - 1) / 4)).round()).double()
    first, last = _ENDS.get(operation, (0.0, 0.0))
    side = {"translate_x": width, "translate_y": height}.get(operation, 1)
    return torch.linspace(first, last * side, bins).double()


# Indexed by the code of an operation; the last entry is for IDENTITY.
_SIGNED = torch.tensor([*(name in WARPS or name in ENHANCEMENTS for name in OPERATIONS), False])
_FACTOR = torch.tensor([*(name in ENHANCEMENTS for name in OPERATIONS), False])


def parameters(code: Tensor, magnitude: Tensor, negative: Tensor) -> Tensor:
    """Parameters for `apply_in_sequence` from codes and magnitudes, all of one shape.

    The magnitude of warps and enhancements is negated where `negative` is true; the factor of an
    enhancement is 1 + magnitude.
    """
    return magnitude.where(~(_SIGNED[code] & negative), -magnitude) + _FACTOR[code]


# AutoAugment.

BINS = 10
#: Value of pixels from outside the image.
GREY = 128


@lru_cache
def _table(height: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Codes, probabilities and magnitudes (2, 25) of the policy, for images of one size."""
    steps = list(zip(*POLICY, strict=True))
    bins = {name: magnitudes(name, height, width, BINS) for name in OPERATIONS}
    return (
        torch.tensor([[OPERATIONS.index(name) for name, _, _ in c] for c in steps]),
        torch.tensor([[p for _, p, _ in c] for c in steps], dtype=torch.float64),
        torch.stack([torch.stack([bins[name][b] for name, _, b in c]) for c in steps]),
    )


@dataclass(frozen=True)
class AutoAugment:
    """AutoAugment with the policy found on CIFAR-10.

    One of 25 sub-policies is drawn for each sample; each of its two operations acts with its own
    probability. Magnitudes are torchvision's, in bins of 10. Older implementations on PIL images
    differ slightly, for instance they solarize from 256 instead of 255.
    """

    draws: ClassVar[int] = 5

    def __call__(self, x: Tensor, u: Tensor) -> Tensor:
        to_policy, *rest = columns(self, x, u)
        chance, sign = torch.stack(rest[:2]), torch.stack(rest[2:])
        drawn = uniform_int(to_policy, len(POLICY))
        # One row for each of the two operations, one column for each sample.
        code, probability, magnitude = (part[:, drawn] for part in _table(*x.shape[-2:]))
        code = code.where(chance < probability, IDENTITY)
        return apply_in_sequence(x, code, parameters(code, magnitude, sign < 0.5), GREY)


# RandAugment.

#: Number of magnitudes from the weakest to the strongest.
RAND_BINS = 31
#: The operations in torchvision's order.
CHOICES = (
    *("identity", "shear_x", "shear_y", "translate_x", "translate_y", "rotate"),
    *("brightness", "color", "contrast", "sharpness"),
    *("posterize", "solarize", "autocontrast", "equalize"),
)
_CODES = torch.tensor([IDENTITY, *(OPERATIONS.index(name) for name in CHOICES[1:])])


@lru_cache
def _strengths(magnitude: int, height: int, width: int) -> Tensor:
    """(14,) magnitude of each choice for images of one size."""
    return torch.stack([magnitudes(name, height, width, RAND_BINS)[magnitude] for name in CHOICES])


@dataclass(frozen=True)
class RandAugment:
    """RandAugment: `num_ops` operations per sample, each one of 14 at random with a random sign.

    All operations act at one magnitude. Operations and magnitudes are torchvision's; timm's are in
    `IncreasingRandAugment`.
    """

    num_ops: int = 2
    magnitude: int = 9  # one of the bins 0..30

    @property
    def draws(self) -> int:
        return 2 * self.num_ops

    def __call__(self, x: Tensor, u: Tensor) -> Tensor:
        columns(self, x, u)
        to_choice, sign = torch.split(u.T, self.num_ops)
        choice = uniform_int(to_choice, len(CHOICES))
        code, size = _CODES[choice], _strengths(self.magnitude, *x.shape[-2:])[choice]
        return apply_in_sequence(x, code, parameters(code, size, sign < 0.5))


# RandAugment as in timm and DeiT. It differs from torchvision's: it has invert and solarize-add,
# and no identity; all magnitudes grow with the level from 0 to 10; the level of each operation is
# noisy; and each operation is skipped with a probability. Warps take the nearest pixel and shift by
# whole pixels; timm's interpolate.

#: The strongest level.
LARGEST_LEVEL = 10.0
#: The operations in timm's order.
TIMM_CHOICES = (
    *("autocontrast", "equalize", "invert", "rotate", "posterize", "solarize", "solarize_add"),
    *("color", "contrast", "brightness", "sharpness"),
    *("shear_x", "shear_y", "translate_x", "translate_y"),
)
#: The mean colour of ImageNet, for pixels from outside the image.
MEAN_COLOUR = (124, 116, 104)
_TIMM_CODES = torch.tensor([OPERATIONS.index(name) for name in TIMM_CHOICES])


def timm_magnitudes(level: Tensor, negative: Tensor, height: int, width: int) -> Tensor:
    """(15, ...) parameters of all operations of `TIMM_CHOICES` at a level (...) of 0..10, float64.

    `negative` (...) says where signed parameters are negated.
    """
    share = level / LARGEST_LEVEL
    sign = torch.where(negative, -1.0, 1.0).to(share.dtype)
    values = {
        "rotate": sign * share * 30.0,
        "posterize": 4 - (share * 4).trunc(),
        "solarize": 256 - (share * 256).trunc(),
        "solarize_add": (share * 110).trunc(),
        **dict.fromkeys(ENHANCEMENTS, (1 + sign * share * 0.9).clamp(min=0.1)),
        **dict.fromkeys(("shear_x", "shear_y"), sign * share * 0.3),
        "translate_x": (sign * share * 0.45 * width).round(),
        "translate_y": (sign * share * 0.45 * height).round(),
    }
    return torch.stack([values.get(name, torch.zeros_like(share)) for name in TIMM_CHOICES])


@dataclass(frozen=True)
class IncreasingRandAugment:
    """timm's ``rand-m9-mstd0.5-inc1``: two operations per sample, each applied half of the time."""

    num_ops: int = 2
    level: float = 9.0  # mean of the level, 0..10
    noise: float = 0.5  # standard deviation of the level; levels beyond 0..10 are cut
    p: float = 0.5

    @property
    def draws(self) -> int:
        return 4 * self.num_ops

    def __call__(self, x: Tensor, u: Tensor) -> Tensor:
        columns(self, x, u)
        to_choice, to_applied, to_level, to_sign = torch.split(u.T, self.num_ops)
        choice = uniform_int(to_choice, len(TIMM_CHOICES))
        level = torch.full_like(to_level, self.level)
        if self.noise:
            # The level of u = 0 is minus infinity before it is cut.
            level = (level + self.noise * torch.special.ndtri(to_level)).clamp(0, LARGEST_LEVEL)
        table = timm_magnitudes(level, to_sign < 0.5, *x.shape[-2:])
        parameter = table.gather(0, choice[None])[0]
        code = _TIMM_CODES[choice].where(to_applied < self.p, IDENTITY)
        return apply_in_sequence(x, code, parameter, MEAN_COLOUR)
