"""RandAugment over whole batches of uint8 images.

Each sample draws its own operations; all of them act at one magnitude. Operations and magnitudes
are torchvision's. The other family of implementations, timm's, is in increasing_randaugment.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from batchformer.lab.data.transforms.contract import columns
from batchformer.lab.data.transforms.grouped import (
    ENHANCEMENTS,
    IDENTITY,
    OPERATIONS,
    apply_in_sequence,
)
from batchformer.lab.data.transforms.magnitudes import has_sign, magnitudes, parameters
from batchformer.lab.data.transforms.uniform import whole

CHOICES = (
    "identity",
    "shear_x",
    "shear_y",
    "translate_x",
    "translate_y",
    "rotate",
    "brightness",
    "color",
    "contrast",
    "sharpness",
    "posterize",
    "solarize",
    "autocontrast",
    "equalize",
)
_CODES = torch.tensor(
    [OPERATIONS.index(name) if name in OPERATIONS else IDENTITY for name in CHOICES]
)
_SIGNED = torch.tensor([has_sign(name) for name in CHOICES])
_FACTOR = torch.tensor([name in ENHANCEMENTS for name in CHOICES])


@lru_cache
def _magnitudes(magnitude: int, bins: int, height: int, width: int) -> Tensor:
    """(14,) magnitude of each choice for images of one size."""
    return torch.stack([magnitudes(name, height, width, bins)[magnitude] for name in CHOICES])


def rand_augment(
    x: Tensor,
    choice: Tensor,
    negative: Tensor,
    magnitude: int = 9,
    bins: int = 31,
    fill: int = 0,
) -> Tensor:
    """Apply the drawn operations to `x` (N, C, H, W) uint8.

    Args:
        x: (N, C, H, W) uint8.
        choice: (P, N) on the CPU: places in `CHOICES`, for P operations one after the other.
        negative: (P, N) bool on the CPU: whether a magnitude that has a sign is negative.
        magnitude: 0..bins - 1.
        bins: how many magnitudes there are from the weakest to the strongest.
        fill: value of pixels that a warp takes from outside the image.
    """
    size = _magnitudes(magnitude, bins, *x.shape[-2:])[choice]
    parameter = parameters(size, negative, _SIGNED[choice], _FACTOR[choice])
    return apply_in_sequence(x, _CODES[choice], parameter, fill)


@dataclass(frozen=True)
class RandAugment:
    """`num_ops` operations per sample, each any of 14 with equal chance, and either sign."""

    num_ops: int = 2
    magnitude: int = 9
    num_magnitude_bins: int = 31
    fill: int = 0

    def __post_init__(self) -> None:
        if self.num_ops < 1 or self.num_magnitude_bins < 2:
            raise ValueError(f"at least 1 operation and 2 bins of magnitude are needed, got {self}")
        if not 0 <= self.magnitude < self.num_magnitude_bins:
            raise ValueError(
                f"magnitude must be one of the {self.num_magnitude_bins} bins 0.."
                f"{self.num_magnitude_bins - 1}, got {self.magnitude}"
            )

    @property
    def draws(self) -> int:
        return 2 * self.num_ops

    def __call__(self, x: Tensor, u: Tensor) -> Tensor:
        columns(self, x, u)
        choice, sign = torch.split(u.T, self.num_ops)
        return rand_augment(
            x,
            whole(choice, len(CHOICES)),
            sign < 0.5,
            self.magnitude,
            self.num_magnitude_bins,
            self.fill,
        )
