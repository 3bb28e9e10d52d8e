"""Scores of one part of a domain: accuracy, loss, and who was taken for whom."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from batchformer.lab.data.feeds.sharding import all_rows
from batchformer.lab.engine.method import Method
from batchformer.lab.engine.optimizer_step import Mechanics


@dataclass(frozen=True, eq=False)
class PartScore:
    """What a network does with M images of K classes.

    Args:
        correct: (M,) whether each was recognised, in order, on the CPU.
        confusion: (K, K) int64 images by class and by prediction, on the CPU.
        loss: mean cross-entropy.
    """

    correct: Tensor
    confusion: Tensor
    loss: float

    @property
    def accuracy(self) -> float:
        """Percent of the images."""
        return 100 * float(self.correct.double().mean())

    @property
    def per_class(self) -> Tensor:
        """(K,) percent of each class; NaN for one without images."""
        return 100 * self.confusion.diagonal() / self.confusion.sum(1)

    @property
    def mean_class(self) -> float:
        """Percent, each class that has images counting the same."""
        return float(self.per_class.nanmean())


def score(
    method: Method,
    mechanics: Mechanics,
    batches: Iterable[tuple[Tensor, Tensor]],
    classes: int,
) -> PartScore:
    """Predict every image once; what was measured is read from the device at the end.

    Args:
        method: in eval mode.
        mechanics: has the precision.
        batches: normalised images (N, channels, H, W) and labels (N,), on the device; with several
            ranks, the images that this one scores, and the labels of all.
        classes: K.
    """
    losses, correct, pairs = [], [], []
    for images, labels in batches:
        with mechanics.autocast():
            logits = all_rows(method.predict(images).float(), len(labels))
        guess = logits.argmax(1)
        losses.append(F.cross_entropy(logits, labels, reduction="sum"))
        correct.append(guess == labels)
        pairs.append(labels * classes + guess)
    if not correct:
        raise ValueError("there is no image to score")
    hits = torch.cat(correct).cpu()
    confusion = torch.bincount(torch.cat(pairs).cpu(), minlength=classes**2)
    loss = float(torch.stack(losses).double().sum()) / len(hits)
    return PartScore(hits, confusion.view(classes, classes), loss)
