"""Who attends to whom, summed over batches by what classes the samples are of."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from batchformer.insight.classes import Classes
from batchformer.insight.pairs import counts_between, of_own_class, sums_between, without_self
from batchformer.insight.record import SHOTS


class AttentionSums:
    """Sums of attention weights over batches, for means that every reader can make.

    Args:
        classes: K classes in P bins and three shot groups.
        heads: H.
    """

    def __init__(self, classes: Classes, heads: int) -> None:
        self.classes, self.bin_of_class, self.shots = classes, classes.bin_of_class, len(SHOTS)
        bins = classes.bins

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.float64)

        self.bins, self.bin_pairs = zeros(heads, bins, bins), torch.zeros(bins, bins).long()
        self.by_shots = zeros(heads, self.shots, self.shots)
        self.shot_pairs = torch.zeros(self.shots, self.shots).long()
        self.own, self.same, self.other = (zeros(heads, 2) for _ in range(3))
        self.context: Tensor | None = None

    def add(self, attention: Tensor, labels: Tensor, to_context: Tensor | None = None) -> None:
        """Take in the weights (H, N, N) of a batch with labels (N,).

        ``to_context`` (H, N) is what its samples give to the rows of a context, if there is one.
        """
        if to_context is not None:
            given = to_context.detach().cpu().double().sum(-1)
            samples = torch.full_like(given, to_context.shape[-1])
            sums = torch.stack((given, samples), dim=-1)
            self.context = sums if self.context is None else self.context + sums
        labels = labels.cpu()
        bins, shots = self.bin_of_class[labels], self.classes.shot_of_class[labels]
        self.bins += sums_between(attention, bins, self.classes.bins)
        self.bin_pairs += counts_between(bins, self.classes.bins)
        self.by_shots += sums_between(attention, shots, self.shots)
        self.shot_pairs += counts_between(shots, self.shots)
        itself = attention.detach().cpu().double().diagonal(dim1=-2, dim2=-1).sum(-1)
        same, same_pairs = of_own_class(attention, labels)
        pairs = len(labels) * (len(labels) - 1)
        rest = without_self(attention).sum((-2, -1)) - same
        for total, value, number in (
            (self.own, itself, len(labels)),
            (self.same, same, same_pairs),
            (self.other, rest, pairs - same_pairs),
        ):
            total[:, 0] += value
            total[:, 1] += number

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All of them, by the names of the record."""
        context = {} if self.context is None else {"attention_context": self.context.numpy()}
        return {
            **context,
            "bin_of_class": self.bin_of_class.numpy(),
            "bin_pairs": self.bin_pairs.numpy(),
            "attention": self.bins.numpy().astype(np.float32),
            "attention_self": self.own.numpy(),
            "attention_same": self.same.numpy(),
            "attention_other": self.other.numpy(),
            "attention_shots": self.by_shots.numpy(),
            "shot_pairs": self.shot_pairs.numpy(),
        }
