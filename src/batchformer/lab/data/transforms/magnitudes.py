"""Magnitudes of the operations of AutoAugment and RandAugment, as in torchvision."""

from __future__ import annotations

import torch
from torch import Tensor

from batchformer.lab.data.transforms.grouped import ENHANCEMENTS, WARPS

# The largest shift, 150 pixels of an image of 331, that the policies were searched with.
_LARGEST_SHIFT = 150 / 331


def magnitudes(operation: str, height: int, width: int, bins: int) -> Tensor:
    """(bins,) float64 magnitude of each bin of an operation, before the sign."""
    # In float32 first, as torchvision's: a shift loses its fraction, so the last bit can matter.
    return _magnitudes(operation, height, width, bins).double()


def _magnitudes(operation: str, height: int, width: int, bins: int) -> Tensor:
    if operation in ("shear_x", "shear_y"):
        return torch.linspace(0, 0.3, bins)
    if operation in ("translate_x", "translate_y"):
        side = width if operation == "translate_x" else height
        return torch.linspace(0, _LARGEST_SHIFT * side, bins)
    if operation == "rotate":
        return torch.linspace(0, 30, bins)
    if operation in ENHANCEMENTS:
        return torch.linspace(0, 0.9, bins)
    if operation == "posterize":
        return 8 - (torch.arange(bins) / ((bins - 1) / 4)).round()
    if operation == "solarize":
        return torch.linspace(255, 0, bins)
    return torch.zeros(bins)


def has_sign(operation: str) -> bool:
    """Whether the magnitude may be turned into its negative."""
    return operation in WARPS or operation in ENHANCEMENTS


def parameters(magnitude: Tensor, negative: Tensor, signed: Tensor, factor: Tensor) -> Tensor:
    """What `grouped.apply_in_sequence` takes, out of magnitudes, all of one shape.

    Args:
        magnitude: before the sign.
        negative: whether the sign is to be negative.
        signed: whether the operation's magnitude has a sign (`has_sign`).
        factor: whether the operation is an enhancement, whose factor is 1 + magnitude.
    """
    return magnitude.where(~(signed & negative), -magnitude) + factor
