"""Orders that images are shown in, besides every one once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from batchformer.lab.data.feeds.order import Sampler
from batchformer.nn.randomness import generator

#: An epoch of repeated images is cut to a multiple of this, as DeiT does.
ROUNDED_TO = 256


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


@dataclass(frozen=True)
class Repeated:
    """Repeated augmentation: a part of the images, each so many times in a row.

    An epoch is as long as the data rounded down to a multiple of 256 (below 256 images, as the data
    itself), so that it shows a third of the images three times, each time augmented differently.
    The last image of an epoch may come less often. DeiT deals these positions out to its processes
    in turn; one process that takes them all sees the same images in each step.

    Args:
        images: in the data set.
        seed: of the run.
        repeats: how often an image comes.

    >>> Repeated(images=7, seed=0).order(epoch=0)
    tensor([2, 2, 2, 4, 4, 4, 0])
    """

    images: int
    seed: int
    repeats: int = 3

    @property
    def length(self) -> int:
        """M, samples of an epoch."""
        return self.images // ROUNDED_TO * ROUNDED_TO or self.images

    def order(self, epoch: int) -> Tensor:
        """(M,) positions drawn from (seed, epoch)."""
        drawn = torch.randperm(self.images, generator=generator(self.seed, "order", epoch))
        return drawn.repeat_interleave(self.repeats)[: self.length]


def sampler_named(
    name: Literal["shuffle", "class_balanced", "repeated"], labels: Tensor, seed: int
) -> Sampler | None:
    """The sampler that a configuration names; None for every image once.

    Args:
        name: as `data.sampler` has it.
        labels: (M,) classes of the images.
        seed: of the run.
    """
    if name == "class_balanced":
        return ClassBalanced(labels, seed)
    return Repeated(len(labels), seed) if name == "repeated" else None


def _cycled(members: Tensor, count: int, draw: torch.Generator) -> Tensor:
    """`count` members, each as often as the others or once more, in random order in each cycle."""
    cycles = -(-count // len(members))
    turns = torch.rand(cycles, len(members), generator=draw).argsort(1)
    return members[turns.flatten()[:count]]
