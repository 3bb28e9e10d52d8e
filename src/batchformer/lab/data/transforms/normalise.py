"""Normalisation of whole batches to zero mean and unit deviation per channel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from batchformer.lab.data.transforms.contract import send


def normalise(x: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """`(x - mean) / std` per channel, on images scaled to 0..1.

    Args:
        x: (N, C, H, W), uint8 in 0..255 (becomes float32) or floating point in 0..1.
        mean: C means of images in 0..1.
        std: C deviations.
    """
    if x.shape[1] != len(mean):
        raise ValueError(f"x has {x.shape[1]} channels (N, C, H, W) but mean has {len(mean)}")
    white = 1 if x.is_floating_point() else 255
    x = x.clone() if x.is_floating_point() else x.float()
    # Statistics scaled to the range of x, not x to theirs: CUDA divides by a plain number through
    # its reciprocal and would differ from the CPU in the last bit.
    # In place on what was just made: new memory for a large batch costs more than the arithmetic.
    return x.sub_(_per_channel(mean, white, x)).div_(_per_channel(std, white, x))


def _per_channel(values: tuple[float, ...], white: int, like: Tensor) -> Tensor:
    scaled = [value * white for value in values]
    on_cpu = torch.tensor(scaled, dtype=like.dtype).view(1, -1, 1, 1)
    return send(on_cpu, like.device)


@dataclass(frozen=True)
class Normalise:
    """`normalise` with fixed statistics; nothing is random, so `u` may be left out."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    draws: ClassVar[int] = 0

    def __call__(self, x: Tensor, u: Tensor | None = None) -> Tensor:
        return normalise(x, self.mean, self.std)
