"""Digits-LT: a long tail of scikit-learn's embedded 8x8 digits, which needs no download."""

from __future__ import annotations

from typing import Any

import numpy as np

from batchformer.lab.data.sets.images import ImageSplit, LongTailedData
from batchformer.lab.data.sets.long_tail import class_counts, draw

NUM_CLASSES = 10
TEST_PER_CLASS = 50
# What the smallest of the ten classes (174 images of the digit 8) has left beside the test part.
LARGEST_CLASS = 124
_GREY_LEVELS = 16


def digits_lt(ratio: float = 50.0, seed: int = 0) -> LongTailedData:
    """An exponential long tail of handwritten digits, and a balanced test part.

    The test part is drawn first, 50 images of each digit; the long tail is drawn from the others.
    At ratio 50 it has 342 images, from 124 zeros to 2 nines.

    Args:
        ratio: images of the largest class over those of the smallest.
        seed: seed of both draws.
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
    try:
        from sklearn import datasets
    except ImportError as error:
        raise ImportError(
            "the digits come with scikit-learn: pip install 'batchformer[lab]'"
        ) from error
    digits = datasets.load_digits()
    return digits.images, digits.target
