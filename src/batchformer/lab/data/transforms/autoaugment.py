"""AutoAugment, and RandAugment as in torchvision and as in timm, of whole uint8 batches."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, NamedTuple

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


#: Magnitudes of the first and of the last bin; of a shift as a share of the side.
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


def has_sign(operation: str) -> bool:
    """Whether the magnitude can be negated."""
    return operation in WARPS or operation in ENHANCEMENTS


def parameters(magnitude: Tensor, negative: Tensor, signed: Tensor, factor: Tensor) -> Tensor:
    """Parameters for `apply_in_sequence` from magnitudes, all of one shape.

    Args:
        signed: whether the operation's magnitude has a sign (`has_sign`).
        factor: whether the operation is an enhancement, whose factor is 1 + magnitude.
    """
    return magnitude.where(~(signed & negative), -magnitude) + factor


# AutoAugment.

BINS = 10
#: Value of pixels from outside the image.
GREY = 128


class _Table(NamedTuple):
    """A policy as tensors (2, 25), for images of one size."""

    code: Tensor
    probability: Tensor
    magnitude: Tensor
    signed: Tensor
    factor: Tensor


@lru_cache
def _table(height: int, width: int) -> _Table:
    steps = list(zip(*POLICY, strict=True))
    bins = {name: magnitudes(name, height, width, BINS) for name in OPERATIONS}
    return _Table(
        torch.tensor([[OPERATIONS.index(name) for name, _, _ in c] for c in steps]),
        torch.tensor([[p for _, p, _ in c] for c in steps], dtype=torch.float64),
        torch.stack([torch.stack([bins[name][b] for name, _, b in c]) for c in steps]),
        torch.tensor([[has_sign(name) for name, _, _ in c] for c in steps]),
        torch.tensor([[name in ENHANCEMENTS for name, _, _ in c] for c in steps]),
    )


def auto_augment(x: Tensor, sub_policy: Tensor, chance: Tensor, negative: Tensor) -> Tensor:
    """Apply the drawn sub-policies to `x` (N, C, H, W) uint8.

    Args:
        sub_policy: (N,) on the CPU, 0..24.
        chance: (2, N) on the CPU: an operation acts where this is below its probability.
        negative: (2, N) bool on the CPU: whether a magnitude that has a sign is negative.
    """
    # One row for each of the two operations, one column for each sample.
    drawn = _Table(*(part[:, sub_policy] for part in _table(*x.shape[-2:])))
    code = drawn.code.where(chance < drawn.probability, IDENTITY)
    parameter = parameters(drawn.magnitude, negative, drawn.signed, drawn.factor)
    return apply_in_sequence(x, code, parameter, GREY)


@dataclass(frozen=True)
class AutoAugment:
    """AutoAugment with the policy found on CIFAR-10.

    One of 25 sub-policies is drawn for each sample; each of its two operations acts with its own
    probability. Magnitudes are torchvision's, in bins of 10. Older implementations on PIL images
    differ slightly, for instance they solarize from 256 instead of 255.
    """

    draws: ClassVar[int] = 5

    def __call__(self, x: Tensor, u: Tensor) -> Tensor:
        sub_policy, *rest = columns(self, x, u)
        chance, sign = torch.stack(rest[:2]), torch.stack(rest[2:])
        return auto_augment(x, uniform_int(sub_policy, len(POLICY)), chance, sign < 0.5)


# RandAugment.

#: Magnitudes that there are from the weakest to the strongest.
RAND_BINS = 31
#: In torchvision's order.
CHOICES = (
    *("identity", "shear_x", "shear_y", "translate_x", "translate_y", "rotate"),
    *("brightness", "color", "contrast", "sharpness"),
    *("posterize", "solarize", "autocontrast", "equalize"),
)
_CODES = torch.tensor(
    [OPERATIONS.index(name) if name in OPERATIONS else IDENTITY for name in CHOICES]
)
_SIGNED = torch.tensor([has_sign(name) for name in CHOICES])
_FACTOR = torch.tensor([name in ENHANCEMENTS for name in CHOICES])


@lru_cache
def _strengths(magnitude: int, height: int, width: int) -> Tensor:
    """(14,) magnitude of each choice for images of one size."""
    return torch.stack([magnitudes(name, height, width, RAND_BINS)[magnitude] for name in CHOICES])


def rand_augment(x: Tensor, choice: Tensor, negative: Tensor, magnitude: int = 9) -> Tensor:
    """Apply the drawn operations to `x` (N, C, H, W) uint8.

    Args:
        choice: (P, N) on the CPU: positions in `CHOICES`, for P operations in sequence.
        negative: (P, N) bool on the CPU: whether a magnitude that has a sign is negative.
        magnitude: one of the bins 0..30.
    """
    size = _strengths(magnitude, *x.shape[-2:])[choice]
    parameter = parameters(size, negative, _SIGNED[choice], _FACTOR[choice])
    return apply_in_sequence(x, _CODES[choice], parameter)


@dataclass(frozen=True)
class RandAugment:
    """RandAugment: `num_ops` operations per sample, each any of 14 with equal chance and sign.

    All operations act at one magnitude. Operations and magnitudes are torchvision's; timm's are in
    `IncreasingRandAugment`.
    """

    num_ops: int = 2
    magnitude: int = 9

    @property
    def draws(self) -> int:
        return 2 * self.num_ops

    def __call__(self, x: Tensor, u: Tensor) -> Tensor:
        columns(self, x, u)
        choice, sign = torch.split(u.T, self.num_ops)
        return rand_augment(x, uniform_int(choice, len(CHOICES)), sign < 0.5, self.magnitude)


# RandAugment as in timm and DeiT. It differs from torchvision's: it has invert and solarize-add,
# and no identity; all magnitudes grow with the level from 0 to 10; the level of each operation is
# noisy; and each operation is skipped with a probability. Warps take the nearest pixel and shift by
# whole pixels; timm's interpolate.

#: The strongest level.
LARGEST_LEVEL = 10.0
#: In timm's order.
TIMM_CHOICES = (
    *("autocontrast", "equalize", "invert", "rotate", "posterize", "solarize", "solarize_add"),
    *("color", "contrast", "brightness", "sharpness"),
    *("shear_x", "shear_y", "translate_x", "translate_y"),
)
#: The mean colour of ImageNet, for pixels from outside the image.
MEAN_COLOUR = (124, 116, 104)
_TIMM_CODES = torch.tensor([OPERATIONS.index(name) for name in TIMM_CHOICES])
_TIMM_ANGLE, _TIMM_SLOPE, _TIMM_SHIFT = 30.0, 0.3, 0.45
_LARGEST_CHANGE, _LEAST_FACTOR = 0.9, 0.1
_BITS, _LEVELS, _LARGEST_ADDITION = 4, 256, 110


def timm_magnitudes(level: Tensor, negative: Tensor, height: int, width: int) -> Tensor:
    """(15, ...) parameters of all operations of `TIMM_CHOICES` at a level.

    Args:
        level: (...) 0..10, float64.
        negative: (...) bool, whether to negate signed parameters.
    """
    share = level / LARGEST_LEVEL
    sign = torch.where(negative, -1.0, 1.0).to(share.dtype)
    factor = (1 + sign * share * _LARGEST_CHANGE).clamp(min=_LEAST_FACTOR)
    none = torch.zeros_like(share)
    slope = sign * share * _TIMM_SLOPE
    values = {
        "rotate": sign * share * _TIMM_ANGLE,
        "posterize": _BITS - (share * _BITS).trunc(),
        "solarize": _LEVELS - (share * _LEVELS).trunc(),
        "solarize_add": (share * _LARGEST_ADDITION).trunc(),
        **dict.fromkeys(("color", "contrast", "brightness", "sharpness"), factor),
        **dict.fromkeys(("shear_x", "shear_y"), slope),
        "translate_x": (sign * share * _TIMM_SHIFT * width).round(),
        "translate_y": (sign * share * _TIMM_SHIFT * height).round(),
    }
    return torch.stack([values.get(name, none) for name in TIMM_CHOICES])


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
