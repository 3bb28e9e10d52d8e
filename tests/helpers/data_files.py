"""Files of data sets: empty ones, where nothing is opened, and images of noise or one colour."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from PIL import Image

from batchformer.lab.data.sets.images import class_counts


def touch(root: Path, *paths: str) -> Path:
    """Make empty files, and the folders above them; returns the root."""
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).touch()
    return root


def one_of_each(root: Path, domains: Iterable[str], classes: Iterable[str]) -> Path:
    """One image ``<domain>/<class>/1.jpg`` of each class in each domain."""
    names = tuple(classes)
    return touch(root, *(f"{domain}/{name}/1.jpg" for domain in domains for name in names))


def save_noise(path: Path, stream: np.random.Generator, height: int = 36, width: int = 36) -> None:
    """An image file of noise, in folders that are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(stream.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(path)


def save_plain(
    path: Path, colour: int | tuple[int, int, int], height: int = 36, width: int = 36
) -> None:
    """An image file of one grey level or colour, in folders that are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    levels = (colour,) * 3 if isinstance(colour, int) else colour
    Image.new("RGB", (width, height), levels).save(path)


def save_images(root: Path, pattern: str, sizes: Iterable[int]) -> str:
    """So many images of noise of each class, of various shapes; returns the list of them.

    Args:
        pattern: path of an image, with ``{c}`` for its class and ``{i}`` for its number.
    """
    stream, lines = np.random.default_rng(0), []
    for c, size in enumerate(sizes):
        for i in range(size):
            path = pattern.format(c=c, i=i)
            save_noise(root / path, stream, 40 + i, 50 - c)
            lines.append(f"{path} {c}\n")
    return "".join(lines)


def save_tail(path: Path, classes: int, largest: int, ratios: tuple[int, ...] = (100,)) -> None:
    """The .npz of a long tail of noise, as large as these ratios need; a third is tested."""
    sizes = np.max([class_counts(largest, classes, ratio) for ratio in ratios], axis=0)
    labels, stream = np.repeat(np.arange(classes), sizes), np.random.default_rng(0)
    tested = np.arange(0, classes, 3)
    np.savez(
        path,
        x_train=stream.integers(0, 256, (len(labels), 32, 32, 3), dtype=np.uint8),
        y_train=labels,
        rank_in_class=np.concatenate([np.arange(n) for n in sizes]),
        x_test=stream.integers(0, 256, (len(tested), 32, 32, 3), dtype=np.uint8),
        y_test=tested,
        classes=np.array([f"class {c}" for c in range(classes)]),
    )
