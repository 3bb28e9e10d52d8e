"""The order of the samples in each epoch: a function of the epoch alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from batchformer.lab.config.data import SamplerName
from batchformer.nn.randomness import generator


class Sampler(Protocol):
    """The order of the samples in each epoch, a function of the epoch alone."""

    @property
    def length(self) -> int:
        """M, the samples of one epoch; the same in every epoch."""

    def order(self, epoch: int) -> Tensor:
        """(M,) int64 positions in the data set, drawn from the epoch and the sampler's seed.

        Repeats are allowed.
        """


@dataclass(frozen=True)
class Shuffle:
    """Every sample once an epoch, in a new order each time.

    >>> Shuffle(4, seed=0).order(epoch=0).sort().values
    tensor([0, 1, 2, 3])
    """

    length: int
    seed: int

    def order(self, epoch: int) -> Tensor:
        return torch.randperm(self.length, generator=generator(self.seed, "order", epoch))


@dataclass(frozen=True)
class InOrder:
    """Every sample once an epoch, in the order of the data set."""

    length: int

    def order(self, epoch: int) -> Tensor:
        return torch.arange(self.length)


@dataclass(frozen=True, eq=False)
class _OfClasses:
    """The fields of samplers by class; an epoch has as many samples as the data set."""

    labels: Tensor  # (M,) classes of the samples
    seed: int

    @property
    def length(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, eq=False)
class ClassBalanced(_OfClasses):
    """Every class equally often: rounds over all classes, each round in a new order.

    A class gives its images in a random order and starts again in another order after the last
    one. Classes without images are left out.

    >>> labels = torch.tensor([0, 0, 0, 0, 0, 1])
    >>> labels[ClassBalanced(labels, seed=0).order(epoch=0)].bincount()
    tensor([3, 3])
    >>> labels[ClassBalanced(labels, seed=0, per_turn=2).order(epoch=0)]
    tensor([1, 1, 0, 0, 0, 0])
    """

    stream: int = 0  # distinguishes samplers of one run
    per_turn: int = 1  # images of a class that follow one another, at its turn in a round

    def order(self, epoch: int) -> Tensor:
        draw = generator(self.seed, "order", epoch, self.stream)
        labels = self.labels.cpu()
        sizes = labels.bincount()
        members = torch.split(labels.argsort(stable=True), sizes[sizes > 0].tolist())
        rounds, each = -(-self.length // (len(members) * self.per_turn)), self.per_turn
        images = torch.stack([_cycled(own, rounds * each, draw) for own in members])
        images = images.view(-1, rounds, each).transpose(0, 1)  # (rounds, classes, each)
        turns = torch.rand(rounds, len(members), generator=draw).argsort(1)
        return images[torch.arange(rounds)[:, None], turns].flatten()[: self.length]


def _cycled(members: Tensor, count: int, draw: torch.Generator) -> Tensor:
    """`count` members in cycles, each cycle in its own random order."""
    cycles = -(-count // len(members))
    turns = torch.rand(cycles, len(members), generator=draw).argsort(1)
    return members[turns.flatten()[:count]]


@dataclass(frozen=True, eq=False)
class ReversedClasses(_OfClasses):
    """Rare classes most often: draw a class by its inverse size, then any image of it.

    Draws are independent, so that an image may come twice. Classes without images are left out.

    >>> labels = torch.tensor([0] * 900 + [1] * 100)
    >>> drawn = labels[ReversedClasses(labels, seed=0).order(epoch=0)]
    >>> bool(abs(drawn.double().mean() - 0.9) < 0.05)
    True
    """

    stream: int = 0  # distinguishes samplers of one run

    def order(self, epoch: int) -> Tensor:
        draw = generator(self.seed, "order", epoch, self.stream)
        labels = self.labels.cpu()
        sizes = labels.bincount().double()
        chances = torch.where(sizes > 0, 1 / sizes.clamp(min=1), 0.0)
        classes = torch.multinomial(chances, self.length, replacement=True, generator=draw)
        within = torch.rand(self.length, generator=draw, dtype=torch.float64) * sizes[classes]
        first = sizes.cumsum(0) - sizes  # of each class, once the samples are sorted by class
        return labels.argsort(stable=True)[(first[classes] + within.floor()).long()]


#: DeiT cuts an epoch of repeated images to a multiple of this.
ROUNDED_TO = 256


@dataclass(frozen=True)
class Repeated:
    """Repeated augmentation: a part of the images, each three times in a row.

    The length of an epoch is the number of images rounded down to a multiple of 256 (unrounded
    below 256), so that it shows a third of the images three times, each time augmented differently.
    The last image of an epoch may come less often. DeiT shards these positions over its processes
    in turn; one process that takes them all sees the same images in each step.

    >>> Repeated(images=7, seed=0).order(epoch=0)
    tensor([2, 2, 2, 4, 4, 4, 0])
    """

    images: int
    seed: int

    @property
    def length(self) -> int:
        return self.images // ROUNDED_TO * ROUNDED_TO or self.images

    def order(self, epoch: int) -> Tensor:
        drawn = torch.randperm(self.images, generator=generator(self.seed, "order", epoch))
        return drawn.repeat_interleave(3)[: self.length]


@dataclass(frozen=True, eq=False)
class Mates(_OfClasses):
    """Pairs of one class: each image of a shuffled order is followed by another of its class.

    The order of :class:`Shuffle` in epoch e is spread over the epochs 2e and 2e + 1, half of the
    images in each. The mate of an image is the next one in a random cycle over its class; an image
    that is alone in its class is its own mate, augmented differently. So in these two epochs every
    image comes twice, once in its turn and once as a mate. Class frequencies are those of the data:
    exactly over the two epochs, and in expectation in each epoch and each batch. A batch of B has
    B / 2 independent classes, so the number of its images of a class varies more: its variance is
    about twice that of a shuffled batch.

    With an odd number of images, the last one of an epoch has no mate, and the middle one of the
    order is in both epochs. In the two epochs the class of the middle one has one image more, then,
    and the class of the last one has one less.

    On several ranks, pairs stay together if each rank has an even number of rows.

    >>> labels = torch.tensor([0, 0, 0, 0, 1, 2])
    >>> labels[Mates(labels, seed=0).order(epoch=0)]
    tensor([0, 0, 2, 2, 1, 1])
    """

    def order(self, epoch: int) -> Tensor:
        draw = generator(self.seed, "order", epoch // 2)
        shuffled = torch.randperm(self.length, generator=draw)
        mates = _next_in_class(self.labels.cpu(), draw)
        half = -(-self.length // 2)
        first = shuffled[-half:] if epoch % 2 else shuffled[:half]
        return torch.stack((first, mates[first]), dim=1).flatten()[: self.length]


def _next_in_class(labels: Tensor, draw: torch.Generator) -> Tensor:
    """(M,) for each sample, the next one in a random cycle over the samples of its class."""
    drawn = torch.randperm(len(labels), generator=draw)
    cycles = drawn[labels[drawn].argsort(stable=True)]  # class by class
    sizes = labels.bincount()
    sizes = sizes[sizes > 0]
    following = torch.arange(1, len(labels) + 1)
    ends = sizes.cumsum(0)
    following[ends - 1] = ends - sizes  # after the last of a class comes its first
    mates = torch.empty_like(cycles)
    mates[cycles] = cycles[following]
    return mates


def sampler_named(name: SamplerName, labels: Tensor, seed: int, per_turn: int = 1) -> Sampler:
    """The sampler that a configuration names."""
    if name == "class_balanced":
        return ClassBalanced(labels, seed, per_turn=per_turn)
    if name == "mates":
        return Mates(labels, seed)
    kind = Repeated if name == "repeated" else Shuffle
    return kind(len(labels), seed)
