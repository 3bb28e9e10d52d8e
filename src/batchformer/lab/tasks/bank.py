"""Features of training images that others are compared with, every class equally often."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from batchformer.lab.data.feeds.order import ClassBalanced
from batchformer.lab.data.feeds.sharding import all_rows

#: Classes count as balanced while the largest has fewer than this many times the smallest's images.
BALANCED_WITHIN = 2
#: Tells the draw apart from those of the training batches.
STREAM = 2

Extract = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Bank:
    """Training images as they are seen at test, drawn so that each class is equally often there.

    Neighbours among a long tail itself would vote for its largest classes, however good the
    features. Where classes are balanced already, within a factor of two, every image is there once.
    An image of a small class is there many times, and votes as often: with five images of the
    smallest of CIFAR-100-LT's classes and 108 draws of each class, about 21 times, so that 200
    neighbours are some ten different images there.

    Args:
        labels: (M,) classes of the training images.
        seed: of the draw.
        batches: gives all training images in order, normalised and on the device, and their labels,
            each time; with several ranks, the images that this one scores.
    """

    labels: Tensor
    seed: int
    batches: Callable[[], Iterable[tuple[Tensor, Tensor]]]

    @property
    def rows(self) -> Tensor:
        """(M,) which training images are in the bank; those of small classes several times."""
        counts = self.labels.bincount()
        counts = counts[counts > 0]
        if int(counts.max()) < BALANCED_WITHIN * int(counts.min()):
            return torch.arange(len(self.labels))
        return ClassBalanced(self.labels, self.seed, STREAM).order(0)

    def __call__(self, extract: Extract) -> tuple[Tensor, Tensor]:
        """Features (M, C) and labels (M,), on the device of the features.

        Args:
            extract: makes features (N, C) of images (N, channels, H, W).
        """
        # Each image once: repeating its features is cheaper than repeating it.
        found = self.features(extract)
        rows = self.rows.to(found.device)
        return found[rows], self.labels.to(found.device)[rows]

    def features(self, extract: Extract) -> Tensor:
        """Features (M, C) of all training images, each once and in order."""
        return torch.cat([all_rows(extract(x).float(), len(y)) for x, y in self.batches()])
