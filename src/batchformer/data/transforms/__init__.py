"""Augmentation and normalisation of whole batches, on any device.

A transform is a callable `transform(x, generator) -> x` on images (N, C, H, W). What is random is
drawn per sample from the given CPU generator and then moved to the device of `x`, so that one seed
gives the same images on every device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from batchformer.data.transforms.autoaugment import AutoAugment
from batchformer.data.transforms.cutout import Cutout
from batchformer.data.transforms.geometry import RandomCrop, RandomFlip
from batchformer.data.transforms.normalise import Normalise

__all__ = [
    "AutoAugment",
    "Compose",
    "Cutout",
    "Normalise",
    "RandomCrop",
    "RandomFlip",
    "Transform",
    "cifar_test",
    "cifar_train",
    "digits_test",
    "digits_train",
]


class Transform(Protocol):
    """What every transform is."""

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Images (N, C, H, W) to images of the same shape."""


@dataclass(frozen=True)
class Compose:
    """Transforms one after the other, drawing from the same generator in that order."""

    transforms: tuple[Transform, ...]

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        for transform in self.transforms:
            x = transform(x, generator)
        return x


def cifar_train(padding: int = 4, fill: int = 128, cutout: int = 16) -> Compose:
    """Crop, flip, AutoAugment, Cutout and normalisation: the CIFAR recipe of Balanced Softmax.

    Args:
        padding: zeros on each side before the crop.
        fill: value that AutoAugment's warps take from outside the image.
        cutout: side of the hole.
    """
    return Compose(
        (RandomCrop(padding), RandomFlip(), AutoAugment(fill), Cutout(cutout), cifar_test())
    )


def cifar_test() -> Normalise:
    """Normalisation of CIFAR images."""
    return Normalise(mean=(0.4914, 0.4822, 0.4465), std=(0.2023, 0.1994, 0.2010))


def digits_train() -> Compose:
    """A shift of at most one pixel, and normalisation, of 8x8 digits."""
    return Compose((RandomCrop(padding=1), digits_test()))


def digits_test() -> Normalise:
    """Normalisation of 8x8 digits, by the statistics of the complete set."""
    return Normalise(mean=(0.3053,), std=(0.3761,))
