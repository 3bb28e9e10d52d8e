"""Means of a network's weights over updates: sums that grow on the device, and what is kept."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class MeanWeights:
    """The mean of a network's weights over some updates, in main memory.

    A ResNet-50 has 0.1 GB of them, and up to `tolerance` segments wait at a time; they are needed
    at evaluations only, so they leave the device's memory to training.

    Args:
        weights: the means.
        updates: how many they are over, one after the other.
        last: the last of these, from 1; None in checkpoints from before this was kept.
    """

    weights: list[Tensor]
    updates: int
    last: int | None = None

    def joined(self, other: MeanWeights) -> MeanWeights:
        """The mean over the updates of both, the other's being the later ones."""
        updates = self.updates + other.updates
        weights = torch._foreach_lerp(self.weights, other.weights, other.updates / updates)
        return MeanWeights(list(weights), updates, other.last)


class WeightSums(nn.Module):
    """Sums of weights over updates, and their number, in tensors that stay where they are.

    A recorded update goes on adding to them when it is replayed.

    Args:
        weights: what will be added, for their shapes.
    """

    updates: Tensor

    def __init__(self, weights: list[Tensor]) -> None:
        super().__init__()
        for number, weight in enumerate(weights):
            zeros = torch.zeros_like(weight, dtype=torch.float32, requires_grad=False)
            self.register_buffer(str(number), zeros)
        self.register_buffer("updates", torch.zeros((), dtype=torch.int64))

    @property
    def sums(self) -> list[Tensor]:
        return [value for name, value in self.named_buffers() if name != "updates"]

    @torch.no_grad()
    def add(self, weights: list[Tensor]) -> None:
        """Take in the weights after one more update."""
        torch._foreach_add_(self.sums, weights)
        self.updates.add_(1)

    def mean(self, before: int | None = 0) -> MeanWeights | None:
        """The mean since the last :meth:`clear`; None if nothing was added.

        Args:
            before: updates of the training before it; None where that is not known.
        """
        updates = int(self.updates)
        if not updates:
            return None
        last = None if before is None else before + updates
        return MeanWeights([(value / updates).cpu() for value in self.sums], updates, last)

    def clear(self) -> None:
        """Begin anew."""
        for value in self.buffers():
            value.zero_()


def weights_of(network: nn.Module) -> list[Tensor]:
    """What is averaged of a network."""
    return [p for p in network.parameters() if p.is_floating_point()]


def joined(mean: MeanWeights | None, other: MeanWeights) -> MeanWeights:
    """:meth:`MeanWeights.joined`, where there may be none yet."""
    return other if mean is None else mean.joined(other)
