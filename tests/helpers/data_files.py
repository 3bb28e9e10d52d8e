"""Files of data sets: empty ones, where nothing is opened, and images of noise or one colour."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from batchformer.lab.data.files.image_files import ImageFiles
from batchformer.lab.data.sets.images import ImageSplit, class_counts

#: Name, box (left, top, right, bottom) and whether it is difficult, as VOC writes them.
Written = tuple[str, tuple[float, float, float, float], int]


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


def noise_files(folder: Path, sizes: Sequence[tuple[int, int]], classes: int = 1) -> ImageFiles:
    """One file of noise for each (height, width), ``class0/00.png`` and so on, classes in turn."""
    draw = np.random.default_rng(0)
    for number, size in enumerate(sizes):
        save_noise(folder / f"class{number % classes}" / f"{number:02d}.png", draw, *size)
    return ImageFiles.from_folder(folder)


def grey_images(count: int, classes: int = 10) -> ImageSplit:
    """Images (N, 1, 8, 8) of noise with labels in turn; always the same."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (count, 1, 8, 8), dtype=torch.uint8, generator=draw)
    return ImageSplit(x, torch.arange(count) % classes)


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


def annotation(objects: Sequence[Written]) -> str:
    """The annotation of an image in the format of VOC."""
    body = "".join(
        f"<object><name>{name}</name><difficult>{difficult}</difficult><bndbox><xmax>{box[2]}"
        f"</xmax><xmin>{box[0]}</xmin><ymax>{box[3]}</ymax><ymin>{box[1]}</ymin></bndbox></object>"
        for name, box, difficult in objects
    )
    return f"<annotation><filename>other.jpg</filename>{body}</annotation>"


def save_voc(root: Path, lists: Mapping[str, Mapping[str, Sequence[Written]]]) -> Path:
    """Lists of VOC such as 2007/trainval, with the objects of each image; returns the root.

    The images themselves are left to the caller.
    """
    for name, images in lists.items():
        year, part = name.split("/")
        folder = root / f"VOC{year}"
        for below in ("JPEGImages", "Annotations", "ImageSets/Main"):
            (folder / below).mkdir(parents=True, exist_ok=True)
        for image, objects in images.items():
            (folder / "Annotations" / f"{image}.xml").write_text(annotation(objects))
        (folder / "ImageSets/Main" / f"{part}.txt").write_text("\n".join([*images, ""]))
    return root


def save_vectors(file: Path, words: Iterable[str], dim: int, stream: np.random.Generator) -> None:
    """A file of random word vectors."""
    rows = [" ".join([word, *map(str, stream.normal(size=dim))]) for word in words]
    file.write_text("\n".join(rows) + "\n")


def feature_rows(classes: int, each: int, unseen: int, tested: int) -> dict[str, Any]:
    """Labels of so many rows of each class; the last classes are unseen.

    The first rows of a seen class are tested on, the others are trained on.
    """
    labels = np.repeat(np.arange(classes), each)
    seen, held = labels < classes - unseen, np.arange(len(labels)) % each < tested
    return {
        "labels": labels,
        "trainval_loc": np.flatnonzero(seen & ~held),
        "test_seen_loc": np.flatnonzero(seen & held),
        "test_unseen_loc": np.flatnonzero(~seen),
    }
