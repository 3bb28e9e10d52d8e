"""Decode an image file to a tensor: upright, three channels, eight bits."""

from __future__ import annotations

import io
import os
import warnings
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

if TYPE_CHECKING:
    from PIL import Image

_JPEG = b"\xff\xd8\xff"


class DamagedImageError(ValueError):
    """A file that is there but cannot be decoded: what was found, and what to do."""

    def __str__(self) -> str:
        return ". ".join(self.args)


def decode(path: str | os.PathLike[str]) -> Tensor:
    """The image in a file, (3, H, W) uint8, turned as its EXIF orientation says.

    torchvision decodes JPEG; Pillow decodes every other format, and what torchvision refuses. A
    damaged PNG would end the process inside torchvision. Grey becomes three equal channels,
    transparency is dropped, sixteen bits are cut to the upper eight, and an animation gives its
    first picture. A file that can be read but not decoded is a DamagedImageError.
    """
    content = np.fromfile(path, dtype=np.uint8)
    if not len(content):
        raise _damaged(path, "the file is empty")
    image = None
    if content[: len(_JPEG)].tobytes() == _JPEG:
        image = _by_torchvision(content)
    if image is None:
        try:
            image = _by_pillow(content)
        except (MemoryError, ImportError):  # not the fault of the file
            raise
        except Exception as error:  # each of Pillow's readers has its own errors
            raise _damaged(path, _reason(error)) from error
    return image


def _by_torchvision(content: npt.NDArray[np.uint8]) -> Tensor | None:
    """(3, H, W) uint8 from the bytes of a JPEG file, or None if that fails."""
    try:
        from torchvision.io import ImageReadMode, decode_image
    except ImportError:  # deprecated since torchvision 0.29, to be removed
        return None
    data = torch.from_numpy(content)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            image: Tensor = decode_image(data, ImageReadMode.RGB, apply_exif_orientation=True)
            return image
    except RuntimeError:
        return None


def _by_pillow(content: npt.NDArray[np.uint8]) -> Tensor:
    """(3, H, W) uint8 from the bytes of any file that Pillow knows."""
    from PIL import Image, ImageOps

    with Image.open(io.BytesIO(content.tobytes())) as file:
        file.load()  # first, so that a later error can only come from EXIF
        image = ImageOps.exif_transpose(file) if _has_exif(file) else file
        if image.mode.startswith("I;16"):  # Pillow would clip, not scale
            grey = torch.from_numpy((np.array(image).astype(np.uint16) >> 8).astype(np.uint8))
            return grey.expand(3, -1, -1)
        if image.mode in ("I", "F"):
            raise ValueError(f"the range of mode {image.mode} is unknown; convert it to 8 bits")
        image.info.pop("transparency", None)  # dropped, as Pillow would warn about a palette's
        return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)


def _has_exif(file: Image.Image) -> bool:
    """Whether EXIF can be read; if it is damaged, the picture may still be whole."""
    try:
        return bool(file.getexif())
    except Exception:  # each part of EXIF has its own errors
        return False


def _damaged(path: str | os.PathLike[str], reason: str) -> DamagedImageError:
    return DamagedImageError(
        f"{os.fspath(path)} cannot be decoded: {reason}",
        "Replace the file, and a stopped run continues. Without the file it is another data set, "
        "for new runs only. --train.damaged skip passes over damaged training images",
    )


def _reason(error: Exception) -> str:
    from PIL import UnidentifiedImageError

    if isinstance(error, UnidentifiedImageError):  # its message is about a buffer's address
        return "not an image of a known format"
    return str(error) or type(error).__name__
