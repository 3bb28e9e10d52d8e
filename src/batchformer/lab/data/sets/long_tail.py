"""Long-tailed profiles: how many images each class keeps, and which ones."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]
Profile = Literal["exponential", "step"]

# Keeps an exact count such as 49 * (1/49) from being truncated to one image less.
_ROUNDING_SLACK = 1e-9


def class_counts(
    n_max: int, num_classes: int, ratio: float, profile: Profile = "exponential"
) -> list[int]:
    """Number of images of each class, in label order, largest class first.

    `exponential`: class c keeps `int(n_max * (1 / ratio) ** (c / (K - 1)))` images. `step`: the
    first half of the classes (rounded down) keeps `n_max`, the others `int(n_max / ratio)`.

    >>> class_counts(5000, 10, 100)
    [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]
    >>> class_counts(500, 4, 100, "step")
    [500, 500, 5, 5]
    """
    if ratio < 1:
        raise ValueError(
            f"ratio is the largest class over the smallest and so at least 1, got {ratio}; "
            "an imbalance factor of 0.01 is ratio 100"
        )
    if profile == "exponential":
        last = max(num_classes - 1, 1)
        sizes = [n_max * (1 / ratio) ** (c / last) for c in range(num_classes)]
    elif profile == "step":
        head = num_classes // 2
        sizes = [float(n_max)] * head + [n_max / ratio] * (num_classes - head)
    else:
        raise ValueError(f"unknown profile {profile!r}; choose 'exponential' or 'step'")
    counts = [int(size + _ROUNDING_SLACK) for size in sizes]
    if 0 in counts:
        raise ValueError(
            f"ratio {ratio:g} leaves class {counts.index(0)} without an image; "
            f"with {n_max} images in the largest class the ratio can be at most {n_max}"
        )
    return counts


def draw(labels: npt.ArrayLike, counts: Sequence[int], seed: int = 0) -> Indices:
    """Positions of the images that form the long tail, class after class.

    Seed 0 on the official file order gives the list that most published code uses: one legacy
    NumPy stream; for each class in label order its positions are shuffled and the first `counts[c]`
    are kept.

    Args:
        labels: (N,) class of each image, in the order of the data set.
        counts: (K,) images to keep of each class 0..K-1.
        seed: seed of the shuffles.
    """
    y = np.asarray(labels)
    # The published lists come from this legacy generator; a Generator would give other images.
    stream = np.random.RandomState(seed)
    kept = []
    for c, wanted in enumerate(counts):
        positions = np.flatnonzero(y == c).astype(np.int64)
        if wanted > len(positions):
            raise ValueError(
                f"class {c}: {wanted} images wanted, {len(positions)} present; "
                "lower the largest class or raise the ratio"
            )
        stream.shuffle(positions)
        kept.append(positions[:wanted])
    return np.concatenate(kept) if kept else np.empty(0, dtype=np.int64)


def split_hash(indices: npt.ArrayLike) -> str:
    """SHA-256 of an index list, taken over its little-endian int64 bytes.

    >>> split_hash([0, 1, 2])[:16]
    'ab25350e3e65efeb'
    """
    return hashlib.sha256(np.asarray(indices, dtype="<i8").tobytes()).hexdigest()
