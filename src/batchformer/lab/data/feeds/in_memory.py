"""Read all image files of a part into memory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from batchformer.lab.data.feeds.framing import Geometry
from batchformer.lab.data.feeds.loader import evaluation_batches
from batchformer.lab.data.files.decode import decode
from batchformer.lab.data.files.image_files import ImageFiles
from batchformer.lab.data.sets.images import ImageSplit
from batchformer.lab.data.transforms.base import Compose

#: Images that a worker reads at a time.
BATCH = 64
_ORIENTATION = 0x0112  # the EXIF tag
_SIDEWAYS = range(5, 9)  # its values that swap rows and columns


def read_all(
    files: ImageFiles, geometry: Geometry | None, workers: int | None = None
) -> ImageSplit:
    """Every image of a part, (N, 3, S, S) uint8, in order.

    Args:
        files: paths and labels.
        geometry: makes each image a square, the same each time. None: all images are squares of
            one size already.
        workers: processes that read; 0: this one does. None: one for each usable core, at most 16.
    """
    if geometry is None:
        geometry = Unchanged(common_side(files))
    x = torch.empty((len(files), 3, geometry.size, geometry.size), dtype=torch.uint8)
    start = 0
    for batch in evaluation_batches(files, geometry, Compose(()), BATCH, workers=workers):
        x[start : start + len(batch["x"])] = batch["x"]
        start += len(batch["x"])
    return ImageSplit(x, files.labels.clone())


@dataclass(frozen=True)
class Unchanged:
    """The geometry of images that have their size already.

    Args:
        size: S, side of the square.
    """

    size: int
    draws: ClassVar[int] = 0

    def __call__(self, image: Tensor, u: Tensor) -> Tensor:
        return image


def common_side(files: ImageFiles) -> int:
    """The side of images that are all squares of one size; only file headers are read.

    Raises:
        ValueError: the first image is no square, or one differs from it.
    """
    if not len(files):
        raise ValueError("there is no image to take a size from: name a part with images")
    first, *others = files.paths
    height, width = _shape(files.root / first)
    advice = "Leave data.memory off, or resize the images to squares of one size"
    if height != width:
        raise ValueError(f"{files.root / first} is {height} x {width}, no square. {advice}")
    for path in others:
        shape = _shape(files.root / path)
        if shape != (height, width):
            raise ValueError(
                f"images differ in size: {files.root / path} is {shape[0]} x "
                f"{shape[1]}, but {first} is {height} x {width}. {advice}"
            )
    return height


def _shape(path: Path) -> tuple[int, int]:
    """Rows and columns of the decoded image, from the header of its file if possible."""
    from PIL import Image

    try:
        with Image.open(path) as image:
            sideways = image.getexif().get(_ORIENTATION) in _SIDEWAYS
            width, height = image.size
    except Exception:  # each of Pillow's readers has its own errors; `decode` names the file
        height, width = decode(path).shape[-2:]
        return int(height), int(width)
    return (width, height) if sideways else (height, width)
