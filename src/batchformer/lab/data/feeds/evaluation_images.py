"""The labelled images that a task is scored on, in memory or in files, as figures need them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from batchformer.insight.classes import Classes
from batchformer.insight.images import thumbnails
from batchformer.lab.data.feeds.loader import View, evaluation_batches
from batchformer.lab.data.files.image_files import ImageFiles
from batchformer.lab.data.sets.images import ImageSplit
from batchformer.lab.data.transforms.base import Compose, Transform

#: Images that a worker reads at a time for thumbnails.
READ = 64


@dataclass(frozen=True, eq=False)
class EvaluationImages:
    """Images in memory; `view` normalises them and draws nothing."""

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
class EvaluationImageFiles:
    """Images in files, read by workers; `view` has a geometry and a transform that draw nothing."""

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
            self.files.subset(rows), *self.view, size, self.device, self.workers
        ):
            yield read["x"]

    def thumbnails(self, rows: Tensor, side: int) -> Tensor:
        geometry, _ = self.view
        read = evaluation_batches(
            self.files.subset(rows), geometry, Compose(()), READ, torch.device("cpu"), self.workers
        )
        return torch.cat([thumbnails(batch["x"], side) for batch in read])
