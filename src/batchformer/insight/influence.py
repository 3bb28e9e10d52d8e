"""Influence by gradient, summed over batches by what classes the samples are of."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from batchformer.insight.classes import Classes
from batchformer.insight.gradient import BatchInfluence, on_images
from batchformer.insight.pairs import sums_between, without_self
from batchformer.insight.relations import Relations


class InfluenceSums:
    """Sums over batches of what samples have on the others of their batch.

    Args:
        classes: K classes in P bins.
        steps: others of each sample whose images are measured; 0: none.
    """

    def __init__(self, classes: Classes, steps: int) -> None:
        self.classes, self.bin_of_class, self.steps = classes, classes.bin_of_class, steps
        self.bins = torch.zeros(classes.bins, classes.bins, dtype=torch.float64)
        self.samples = torch.zeros(len(classes), dtype=torch.int64)
        names = ("abs", "l2", "images_abs", "images_l2")
        self.sums = {name: torch.zeros(len(classes), dtype=torch.float64) for name in names}

    def add(self, seen: BatchInfluence, labels: Tensor, relations: Relations, x: Tensor) -> None:
        """Take in a batch of N > 1 images (N, ...) with labels (N,)."""
        labels, others = labels.cpu(), len(labels) - 1
        self.bins += sums_between(seen.absolute, self.bin_of_class[labels], self.classes.bins)
        self.samples += torch.bincount(labels, minlength=len(self.classes))
        self._add("abs", without_self(seen.absolute).sum(1) / others, labels)
        self._add("l2", without_self(seen.length).sum(1) / others, labels)
        if self.steps:
            absolute, length = on_images(relations, x, seen.following)
            self._add("images_abs", absolute.mean(0), labels)
            self._add("images_l2", length.mean(0), labels)

    def _add(self, name: str, values: Tensor, labels: Tensor) -> None:
        wide = values.detach().cpu().double()
        self.sums[name] += torch.bincount(labels, wide, minlength=len(self.classes))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All of them, by the names of the record; NaN for a class that was not measured."""
        measured = {
            f"gradient_{name}": (total / self.samples).numpy()
            for name, total in self.sums.items()
            if self.steps or not name.startswith("images")
        }
        return {
            **measured,
            "gradient_samples": self.samples.numpy(),
            "gradient": self.bins.numpy().astype(np.float32),
        }
