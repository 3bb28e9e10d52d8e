"""Test images that can be looked at: as a network takes them, and small, for people."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from batchformer.insight.classes import Classes
from batchformer.lab.data.feeds.loader import View, evaluation_batches
from batchformer.lab.data.files.image_files import ImageFiles
from batchformer.lab.data.sets.images import ImageSplit
from batchformer.lab.data.transforms.base import Transform

#: Images read at a time for thumbnails.
READ = 64


class Shown(Protocol):
    """M labelled test images."""

    @property
    def classes(self) -> Classes: ...

    @property
    def labels(self) -> Tensor:
        """(M,) int64 on the CPU."""

    def batches(self, rows: Tensor, size: int) -> Iterator[Tensor]:
        """Normalised images (N, channels, H, W) of these rows on the device, N at a time."""

    def thumbnails(self, rows: Tensor, side: int) -> Tensor:
        """(n, h, w, 3) uint8 on the CPU, at most `side` high and wide."""


@dataclass(frozen=True, eq=False)
class ShownInMemory:
    """Images in memory.

    Args:
        classes: K.
        images: M.
        view: normalisation; nothing of it is random.
        device: where batches are made.
    """

    classes: Classes
    images: ImageSplit
    view: Transform
    device: torch.device

    @property
    def labels(self) -> Tensor:
        return self.images.y.cpu()

    def batches(self, rows: Tensor, size: int) -> Iterator[Tensor]:
        for part in torch.split(rows, size):
            images = self.images.x[part.to(self.images.x.device)].to(self.device)
            yield self.view(images, torch.empty(len(part), 0, dtype=torch.float64))

    def thumbnails(self, rows: Tensor, side: int) -> Tensor:
        return thumbnails(self.images.x[rows.to(self.images.x.device)].cpu(), side)


@dataclass(frozen=True, eq=False)
class ShownFiles:
    """Images in files, read by workers.

    Args:
        classes: K.
        files: M.
        view: geometry and transform of a test image; nothing of them is random.
        device: where batches are made.
        workers: as for `evaluation_batches`.
    """

    classes: Classes
    files: ImageFiles
    view: View
    device: torch.device
    workers: int | None = None

    @property
    def labels(self) -> Tensor:
        return self.files.labels

    def batches(self, rows: Tensor, size: int) -> Iterator[Tensor]:
        for read in evaluation_batches(
            self._part(rows), *self.view, size, self.device, self.workers
        ):
            yield read["x"]

    def thumbnails(self, rows: Tensor, side: int) -> Tensor:
        geometry, _ = self.view
        read = evaluation_batches(
            self._part(rows), geometry, _AsRead(), READ, torch.device("cpu"), self.workers
        )
        return torch.cat([thumbnails(batch["x"], side) for batch in read])

    def _part(self, rows: Tensor) -> ImageFiles:
        paths = tuple(self.files.paths[row] for row in rows.tolist())
        return ImageFiles(paths, self.files.labels[rows], self.files.classes, self.files.root)


class _AsRead:
    """Images as they were read."""

    draws = 0

    def __call__(self, x: Tensor, u: Tensor) -> Tensor:
        return x


def thumbnails(images: Tensor, side: int) -> Tensor:
    """(n, h, w, 3) uint8 of images (n, 1 or 3, H, W) uint8, none enlarged.

    Larger ones are reduced, each pixel the mean of the area that it covers.

    >>> thumbnails(torch.zeros(2, 1, 100, 50, dtype=torch.uint8), side=10).shape
    torch.Size([2, 10, 5, 3])
    """
    height, width = images.shape[-2:]
    if max(height, width) > side:
        scale = side / max(height, width)
        size = [max(1, round(length * scale)) for length in (height, width)]
        images = F.interpolate(images.float(), size, mode="area").round().to(torch.uint8)
    return images.expand(-1, 3, -1, -1).permute(0, 2, 3, 1).contiguous()
