"""Orders that a long tail is shown in."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from batchformer.randomness import generator


@dataclass(frozen=True, eq=False)
class ClassBalanced:
    """Every class equally often: rounds over all classes, each round in a new order.

    A class gives its images one after the other in a random order, and begins again in another
    once all were shown. An epoch has as many samples as the data set; classes without images are
    left out.

    Args:
        labels: (M,) classes of the samples.
        seed: of the run.
        stream: tells apart samplers of one run.

    >>> labels = torch.tensor([0, 0, 0, 0, 0, 1])
    >>> labels[ClassBalanced(labels, seed=0).order(epoch=0)].bincount()
    tensor([3, 3])
    """

    labels: Tensor
    seed: int
    stream: int = 0

    @property
    def length(self) -> int:
        """M."""
        return len(self.labels)

    def order(self, epoch: int) -> Tensor:
        """(M,) positions drawn from (seed, epoch)."""
        draw = generator(self.seed, "order", epoch, self.stream)
        labels = self.labels.cpu()
        classes = labels.bincount().nonzero()[:, 0]
        rounds = -(-self.length // len(classes))
        shown = torch.stack([_cycled((labels == c).nonzero()[:, 0], rounds, draw) for c in classes])
        turns = torch.rand(rounds, len(classes), generator=draw).argsort(1)
        return shown.T.gather(1, turns).flatten()[: self.length]


def _cycled(members: Tensor, count: int, draw: torch.Generator) -> Tensor:
    """`count` members, each as often as the others or once more, in random order in each cycle."""
    cycles = -(-count // len(members))
    turns = torch.rand(cycles, len(members), generator=draw).argsort(1)
    return members[turns.flatten()[:count]]
