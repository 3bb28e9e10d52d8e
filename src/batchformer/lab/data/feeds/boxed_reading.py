"""An image with boxes as a detector sees it: read, resized, mirrored."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from threading import Lock

import numpy as np
import torch
from torch import Tensor

from batchformer.lab.data.files.decode import decode
from batchformer.lab.data.sets.voc import BoxedImage

#: Bytes of decoded images that are kept: a few thousand of VOC's size.
KEPT_BYTES = 2 * 2**30
#: Pillow's names of images with eight bits a channel, which become RGB without loss.
_EIGHT_BITS = ("1", "L", "LA", "P", "RGB", "RGBA")


@dataclass(frozen=True)
class Job:
    """An image to be read, and how.

    Args:
        image: file and boxes.
        shorter: length that its shorter side gets.
        flip: mirror it left to right.
    """

    image: BoxedImage
    shorter: int
    flip: bool = False


@dataclass(frozen=True)
class Shown:
    """An image as a detector sees it.

    Args:
        x: (3, H, W) uint8.
        boxes: (n, 4) float32 in its pixels.
        labels: (n,) int64.
        scale: width and height over those of the file.
    """

    x: Tensor
    boxes: Tensor
    labels: Tensor
    scale: tuple[float, float]


def resized(height: int, width: int, shorter: int, longest: int) -> tuple[int, int]:
    """Height and width with this shorter side, or less where the longer one would be too long.

    >>> resized(375, 500, 480, 1333), resized(100, 400, 480, 1333)
    ((480, 640), (333, 1333))
    """
    scale = min(shorter / min(height, width), longest / max(height, width))
    return max(int(height * scale + 0.5), 1), max(int(width * scale + 0.5), 1)


def shown(
    x: Tensor, boxes: Tensor, labels: Tensor, shorter: int, longest: int, flip: bool = False
) -> Shown:
    """Resize, and mirror if asked; boxes are cut at the border, and what has no area is left out.

    Args:
        x: (3, H, W) uint8.
        boxes: (n, 4) left, top, right, bottom in its pixels.
        labels: (n,) of the boxes.
        shorter: length of the shorter side.
        longest: largest length of the longer side.
        flip: mirror it left to right.
    """
    from PIL import Image

    old_height, old_width = x.shape[1:]
    height, width = resized(old_height, old_width, shorter, longest)
    pixels = np.ascontiguousarray(x.permute(1, 2, 0).numpy())
    picture = Image.fromarray(pixels).resize((width, height), Image.Resampling.BILINEAR)
    x = torch.from_numpy(np.array(picture)).permute(2, 0, 1)
    scale = (width / old_width, height / old_height)
    boxes = boxes * torch.tensor([*scale, *scale], dtype=boxes.dtype)
    boxes = boxes.clamp(min=0).minimum(torch.tensor([width, height] * 2, dtype=boxes.dtype))
    if flip:
        x = x.flip(2)
        boxes = torch.stack((width - boxes[:, 2], boxes[:, 1], width - boxes[:, 0], boxes[:, 3]), 1)
    kept = (boxes[:, 2:] > boxes[:, :2]).all(1)
    return Shown(x.contiguous(), boxes[kept], labels[kept], scale)


def decode_in_thread(path: Path) -> Tensor:
    """What `decode` gives, (3, H, W) uint8, mostly without it.

    `decode` changes Python's filters of warnings for a moment, and these are the same for all
    threads. Pillow needs no such thing; what it does not know well is rare, and left to `decode`,
    which also has the words for what is damaged.
    """
    from PIL import Image, ImageOps

    try:
        with Image.open(path) as file:
            if file.mode in _EIGHT_BITS:
                upright = ImageOps.exif_transpose(file).convert("RGB")
                return torch.from_numpy(np.array(upright)).permute(2, 0, 1)
    except (MemoryError, FileNotFoundError):
        raise
    except Exception:  # each of Pillow's readers has errors of its own
        return decode(path)
    return decode(path)


class ShownReader:
    """Reads jobs, from any thread; keeps decoded images as long as they take little memory.

    Args:
        longest: largest length of a longer side.
        kept_bytes: how much is kept; 0 reads every file each time.
    """

    def __init__(self, longest: int, kept_bytes: int = KEPT_BYTES) -> None:
        self.longest, self.left = longest, kept_bytes
        self._images: dict[Path, Tensor] = {}
        self._lock = Lock()

    def __call__(self, job: Job) -> Shown:
        x, image = self.decoded(job.image.path), job.image
        return shown(x, image.boxes, image.labels, job.shorter, self.longest, job.flip)

    def decoded(self, path: Path) -> Tensor:
        """(3, H, W) uint8, as the file has it."""
        image = self._images.get(path)
        if image is None:
            image = decode_in_thread(path)
            with self._lock:
                if path not in self._images and image.numel() <= self.left:
                    self._images[path] = image
                    self.left -= image.numel()
        return image
