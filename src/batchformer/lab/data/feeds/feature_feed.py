"""Random batches of feature vectors that live on the device, as a function of the step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from batchformer.lab.data.feeds.sharding import own_positions, require_rows
from batchformer.lab.data.transforms.contract import send
from batchformer.nn.randomness import generator


class FeatureFeed:
    """Batches drawn from all rows, each without a row twice; a method may take several at a time.

    Args:
        features: (M, D).
        labels: (M,).
        batch_size: N, rows of a batch; at most M are taken.
        seed: of the run.
        device: where the features live.
        times: batches of one step, one after the other; with several ranks, each has its own part
            of every one.

    >>> feed = FeatureFeed(torch.eye(3), torch.arange(3), batch_size=2, seed=0, times=2)
    >>> feed.per_epoch, feed.batch(0)["x"].shape
    (2, torch.Size([4, 3]))
    """

    def __init__(
        self,
        features: Tensor,
        labels: Tensor,
        batch_size: int,
        seed: int,
        device: torch.device | str = "cpu",
        times: int = 1,
    ) -> None:
        if not len(features) or len(features) != len(labels):
            raise ValueError(f"{len(features)} features and {len(labels)} labels make no batch")
        self.features, self.labels = features.to(device), labels.to(device)
        self.batch_size, self.seed, self.times = min(batch_size, len(features)), seed, times
        self.per_epoch = -(-len(features) // self.batch_size)
        require_rows([self.batch_size])

    def batch(self, step: int) -> dict[str, Any]:
        """The rows of one step: ``x`` (times * N, D), ``y`` and ``index`` (times * N,)."""
        rows = [
            torch.randperm(len(self.labels), generator=generator(self.seed, "order", step, number))
            for number in range(self.times)
        ]
        size = self.batch_size
        own = own_positions([size] * self.times)
        index = send(torch.cat([row[:size] for row in rows])[own], self.features.device)
        return {"x": self.features[index], "y": self.labels[index], "index": index}
