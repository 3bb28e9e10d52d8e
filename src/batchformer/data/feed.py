"""Batches as a function of the step: the order and the augmentation need no state."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from batchformer.data.images import ImageSplit
from batchformer.data.transforms import Transform
from batchformer.randomness import generator


class Feed:
    """Shuffled, augmented batches of an in-memory data set that lives on the device.

    Args:
        split: images and labels.
        transform: augmentation and normalisation of a whole batch.
        batch_size: samples in a batch.
        seed: of the run; order and augmentation draw from it separately.
        drop_last: leave out the last, smaller batch of an epoch.
        device: where batches are made.
    """

    def __init__(
        self,
        split: ImageSplit,
        transform: Transform,
        batch_size: int,
        seed: int,
        drop_last: bool = False,
        device: torch.device | str = "cpu",
    ) -> None:
        rows = len(split.y)
        if drop_last and rows < batch_size:
            raise ValueError(
                f"{rows} training images make no full batch of {batch_size}: set a smaller "
                f"train.batch-size, or keep the last batch (train.no-drop-last)."
            )
        self.x, self.y = split.x.to(device), split.y.to(device)
        self.transform, self.batch_size, self.seed = transform, batch_size, seed
        self.per_epoch = rows // batch_size if drop_last else -(-rows // batch_size)
        self._order: tuple[int, Tensor] = (-1, torch.empty(0))

    def order(self, epoch: int) -> Tensor:
        """The permutation of the samples in an epoch, ``(N,)`` on the CPU."""
        if self._order[0] != epoch:
            draw = generator(self.seed, "order", epoch)
            self._order = (epoch, torch.randperm(len(self.y), generator=draw))
        return self._order[1]

    def batch(self, step: int) -> dict[str, Any]:
        """The batch of one step: ``x`` (N, C, H, W), ``y`` (N,) and ``index`` (N,)."""
        epoch, position = divmod(step, self.per_epoch)
        start = position * self.batch_size
        index = self.order(epoch)[start : start + self.batch_size].to(self.y.device)
        x = self.transform(self.x[index], generator(self.seed, "augmentation", step))
        return {"x": x, "y": self.y[index], "index": index}
