"""scikit-learn's 8x8 digits, which need no download: a long tail, and rotated ones as domains."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from batchformer.insight.optional import extra
from batchformer.lab.data.sets.images import ImageSplit, LongTailedData, class_counts, draw
from batchformer.nn.randomness import generator

if TYPE_CHECKING:
    from batchformer.lab.data.sets.domains import Domains

NUM_CLASSES = 10
TEST_PER_CLASS = 50
# The smallest class, the digit 8, has 174 images; the test part takes 50 of them.
LARGEST_CLASS = 124
_GREY_LEVELS = 16


def digits_lt(ratio: float = 50.0, seed: int = 0) -> LongTailedData[ImageSplit]:
    """An exponential long tail of handwritten digits, and a balanced test part.

    The test part is drawn first, 50 images of each digit; the long tail is drawn from the others.
    At ratio 50 it has 342 images, from 124 zeros to 2 nines.
    """
    images, labels = load_digits()
    test = draw(labels, [TEST_PER_CLASS] * NUM_CLASSES, seed)
    rest = np.setdiff1d(np.arange(len(labels)), test)
    train = rest[draw(labels[rest], class_counts(LARGEST_CLASS, NUM_CLASSES, ratio), seed)]
    x = np.rint(images * (255 / _GREY_LEVELS)).astype(np.uint8)[..., None]
    return LongTailedData(
        train=ImageSplit.from_channels_last(x[train], labels[train]),
        test=ImageSplit.from_channels_last(x[test], labels[test]),
        classes=tuple(str(digit) for digit in range(NUM_CLASSES)),
        name=f"digits_lt_exponential_{ratio:g}",
    )


def load_digits() -> tuple[Any, Any]:
    """Images (1797, 8, 8) with values 0..16, and labels (1797,)."""
    with extra("lab"):
        from sklearn import datasets
    digits = datasets.load_digits()
    return digits.images, digits.target


# Rotated digits.

#: Degrees by which the digits of each domain are rotated, counter-clockwise.
ANGLES = (0, 15, 30, 45, 60, 75)
SIDE = 16
_SEED = 0


def rotated_digits() -> Domains[ImageSplit]:
    """All 1,797 digits, each in one of six domains r0, r15, ... r75, (N, 1, 16, 16) grey levels.

    The idea is that of rotated MNIST. The digits are split over the domains in a fixed way. They
    are enlarged from 8x8 before the rotation: 8x8 pixels are too few to rotate.
    """
    from batchformer.lab.data.sets.domains import Domains  # imported late: it also reads files

    images, labels = load_digits()
    y = torch.from_numpy(labels).to(torch.int64)
    levels = torch.from_numpy(images).double() * (255 / _GREY_LEVELS)
    large = F.interpolate(levels[:, None], (SIDE, SIDE), mode="bilinear", align_corners=False)
    split = zip(split_evenly(y, len(ANGLES)), ANGLES, strict=True)
    return Domains(
        name="rotated_digits",
        domains=tuple(f"r{angle}" for angle in ANGLES),
        classes=tuple(str(digit) for digit in range(NUM_CLASSES)),
        parts=tuple(ImageSplit(rotated(large[rows], angle), y[rows]) for rows, angle in split),
    )


def split_evenly(labels: Tensor, domains: int) -> list[Tensor]:
    """Split rows at random over domains; returns the sorted rows of each.

    The numbers of samples, of each class and in all, differ by at most one between domains.
    """
    draw = torch.randperm(len(labels), generator=generator(_SEED, "split"))
    by_class = draw[labels[draw].argsort(stable=True)]
    return [by_class[domain::domains].sort().values for domain in range(domains)]


def rotated(levels: Tensor, degrees: float) -> Tensor:
    """Rotate grey levels 0..255 (N, C, H, W) float64 counter-clockwise; returns uint8.

    Each image is rotated about its centre with bilinear interpolation; outside of it is black.
    """
    from torchvision.transforms.v2 import InterpolationMode
    from torchvision.transforms.v2 import functional as V

    if degrees:  # at 0 degrees, rounding errors would move the sampling grid off the pixels
        levels = V.rotate(levels, degrees, InterpolationMode.BILINEAR, fill=0)
    return levels.round().clamp(0, 255).to(torch.uint8)
