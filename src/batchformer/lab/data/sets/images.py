"""In-memory image data: what every data set of the laboratory returns."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from batchformer.lab.data.files.content_hash import content_hash


@dataclass(frozen=True, eq=False)
class ImageSplit:
    """Images and labels of one part of a data set.

    Args:
        x: (N, C, H, W) uint8 images.
        y: (N,) int64 labels.
    """

    x: Tensor
    y: Tensor

    def __post_init__(self) -> None:
        if self.x.ndim != 4 or self.x.dtype != torch.uint8:
            raise ValueError(
                f"x must be uint8 of shape (N, C, H, W), got {self.x.dtype} of shape "
                f"{tuple(self.x.shape)}"
            )
        if self.y.ndim != 1 or self.y.dtype != torch.int64:
            raise ValueError(
                f"y must be int64 of shape (N,), got {self.y.dtype} of shape {tuple(self.y.shape)}"
            )
        if len(self.x) != len(self.y):
            raise ValueError(f"{len(self.x)} images but {len(self.y)} labels")

    @classmethod
    def from_channels_last(
        cls, images: npt.NDArray[np.uint8], labels: npt.NDArray[np.integer]
    ) -> ImageSplit:
        """From arrays (N, H, W, C) and (N,), the layout that image files are read in."""
        x = torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2)))
        return cls(x=x, y=torch.from_numpy(labels.astype(np.int64)))

    def __len__(self) -> int:
        return len(self.y)

    def to(self, device: torch.device | str) -> ImageSplit:
        """The same images on a device."""
        return ImageSplit(self.x.to(device), self.y.to(device))


@dataclass(frozen=True, eq=False)
class LongTailedData:
    """A long-tailed training part and a balanced test part.

    Args:
        train: long-tailed part.
        test: part that scores are measured on.
        classes: K class names in label order.
        name: what the data is, with its ratio and profile.
    """

    train: ImageSplit
    test: ImageSplit
    classes: tuple[str, ...]
    name: str

    def __post_init__(self) -> None:
        if self.train.x.shape[1:] != self.test.x.shape[1:]:
            raise ValueError(
                f"{self.name}: training images are {tuple(self.train.x.shape[1:])} but test "
                f"images are {tuple(self.test.x.shape[1:])} (C, H, W)"
            )
        for part, y in (("training", self.train.y), ("test", self.test.y)):
            if len(y) and not (y.min() >= 0 and y.max() < len(self.classes)):
                raise ValueError(
                    f"{self.name}: {part} labels run from {int(y.min())} to {int(y.max())}, but "
                    f"the {len(self.classes)} classes are 0..{len(self.classes) - 1}"
                )

    @cached_property
    def train_sha256(self) -> str:
        """Hash of the training images and their labels, in order."""
        return content_hash(self.train.x, self.train.y)

    @cached_property
    def split_sha256(self) -> str:
        """Hash of the class names, and of the images and labels of both parts."""
        test = content_hash(self.test.x, self.test.y)
        return content_hash("\n".join(self.classes), self.train_sha256, test)

    @property
    def train_counts(self) -> Tensor:
        """(K,) int64 number of training images of each class."""
        return torch.bincount(self.train.y, minlength=len(self.classes))
