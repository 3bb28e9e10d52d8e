"""A long-tailed image set in one `.npz` file.

Arrays: `x_train`, `x_test` (N, H, W, C) uint8; `y_train`, `y_test` (N,) labels; `rank_in_class`
(N,) position of a training image inside its class; `classes` (K,) names. The training images are
one long tail already drawn; the ranks give every steeper tail inside it.
"""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from batchformer.lab.data.sets.images import ImageSplit, LongTailedData
from batchformer.lab.data.sets.long_tail import Profile, class_counts

_ARRAYS = ("x_train", "y_train", "rank_in_class", "x_test", "y_test", "classes")


def read_long_tail(
    path: Path, num_classes: int, ratio: float, profile: Profile, seed: int, name: str
) -> LongTailedData:
    """The long tail in `path`, or a steeper one inside it.

    Args:
        path: the `.npz` file.
        num_classes: classes that the file must have.
        ratio: images of the largest class over those of the smallest.
        profile: `exponential` or `step`.
        seed: 0; the draw is fixed in the file.
        name: name given to the data.
    """
    if seed != 0:
        raise ValueError(
            f"{path} holds one fixed draw, so seed {seed} cannot be had from it; use seed 0 or "
            "the official files"
        )
    arrays = _read(path, num_classes)
    labels = arrays["y_train"].astype(np.int64)
    present = np.bincount(labels, minlength=num_classes)
    counts = class_counts(int(present.max()), num_classes, ratio, profile)
    _check_steep_enough(path, arrays["classes"], present, counts, ratio, profile)
    kept = np.flatnonzero(arrays["rank_in_class"] < np.asarray(counts)[labels])
    return LongTailedData(
        train=ImageSplit.from_channels_last(arrays["x_train"][kept], labels[kept]),
        test=ImageSplit.from_channels_last(arrays["x_test"], arrays["y_test"]),
        classes=tuple(str(c) for c in arrays["classes"]),
        name=name,
    )


def _read(path: Path, num_classes: int) -> dict[str, npt.NDArray[Any]]:
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            missing = [key for key in _ARRAYS if key not in file.files]
            if missing:
                raise KeyError(f"lacks {', '.join(missing)}; it holds {', '.join(file.files)}")
            arrays = {key: file[key] for key in _ARRAYS}
    except (ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} is not a long-tailed image set: {error}") from error
    for key in ("x_train", "x_test"):
        if arrays[key].ndim != 4 or arrays[key].dtype != np.uint8:
            raise ValueError(
                f"{path}: {key} must be uint8 of shape (N, H, W, C), got {arrays[key].dtype} "
                f"of shape {arrays[key].shape}"
            )
    if len(arrays["classes"]) != num_classes:
        raise ValueError(f"{path} has {len(arrays['classes'])} classes instead of {num_classes}")
    for images, labels in (("x_train", "y_train"), ("x_test", "y_test")):
        _check_labels(path, arrays[images], labels, arrays[labels], num_classes)
    if arrays["rank_in_class"].shape != arrays["y_train"].shape:
        ranks = arrays["rank_in_class"].shape
        raise ValueError(f"{path}: rank_in_class is of shape {ranks}, not a rank for each image")
    return arrays


def _check_labels(
    path: Path, images: npt.NDArray[Any], name: str, labels: npt.NDArray[Any], num_classes: int
) -> None:
    if not len(images):
        raise ValueError(f"{path} has no images for {name}")
    if labels.shape != images.shape[:1] or labels.dtype.kind not in "iu":
        raise ValueError(
            f"{path}: {name} must be whole numbers of shape ({len(images)},), one for each image, "
            f"got {labels.dtype} of shape {labels.shape}"
        )
    if labels.min() < 0 or labels.max() >= num_classes:
        raise ValueError(
            f"{path}: {name} runs from {labels.min()} to {labels.max()}, but the {num_classes} "
            f"classes are 0..{num_classes - 1}"
        )


def _check_steep_enough(
    path: Path,
    classes: npt.NDArray[np.str_],
    present: npt.NDArray[np.int64],
    counts: Sequence[int],
    ratio: float,
    profile: str,
) -> None:
    short = [c for c, wanted in enumerate(counts) if wanted > present[c]]
    if short:
        c = short[0]
        raise ValueError(
            f"{path} is a long tail of ratio {present.max() / max(present.min(), 1):g}, too steep "
            f"for ratio {ratio:g} ({profile}): {len(short)} classes have too few images, first "
            f"{classes[c]} (class {c}) with {counts[c]} wanted and {present[c]} present. Ask for "
            "a steeper tail, or give the official files"
        )
