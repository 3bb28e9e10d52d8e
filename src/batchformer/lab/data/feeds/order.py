"""Which samples a step takes: a function of the step, so that resuming needs no state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from batchformer.lab.data.feeds.sharding import block_sizes, own_positions, own_sizes, require_rows
from batchformer.nn.exchange import world_size
from batchformer.nn.randomness import generator


class Sampler(Protocol):
    """The order of the samples in each epoch, a function of the epoch alone."""

    @property
    def length(self) -> int:
        """M, the samples of one epoch; the same in every epoch."""

    def order(self, epoch: int) -> Tensor:
        """(M,) int64 positions in the data set, in the order of the epoch; repeats are allowed."""


class Order(Protocol):
    """Which samples each step takes, a function of the step alone."""

    @property
    def per_epoch(self) -> int:
        """Steps in an epoch."""

    @property
    def blocks(self) -> int:
        """Blocks of rows in each step; every rank has a part of each block."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """All numbers N of samples that a step may have."""

    def index(self, step: int) -> Tensor:
        """(N,) int64 the samples of one step, on the CPU; N may differ between steps."""


@dataclass(frozen=True)
class Shuffle:
    """Every sample once an epoch, in a new order each time.

    >>> Shuffle(4, seed=0).order(epoch=0).sort().values
    tensor([0, 1, 2, 3])
    """

    length: int
    seed: int

    def order(self, epoch: int) -> Tensor:
        """(M,) a permutation drawn from (seed, epoch)."""
        return torch.randperm(self.length, generator=generator(self.seed, "order", epoch))


@dataclass(frozen=True)
class InOrder:
    """Every sample once an epoch, as the data set has them."""

    length: int

    def order(self, epoch: int) -> Tensor:
        """(M,) 0, 1, 2, ..."""
        return torch.arange(self.length)


class Steps:
    """The epochs of a sampler one after the other, cut into batches.

    A batch never spans two epochs: the last one of an epoch is smaller, or is left out.

    >>> steps = Steps(Shuffle(5, seed=0), batch_size=2)
    >>> steps.per_epoch, [len(steps.index(step)) for step in range(4)]
    (3, [2, 2, 1, 2])
    >>> steps.sizes
    (1, 2)
    """

    blocks = 1

    def __init__(self, sampler: Sampler, batch_size: int, drop_last: bool = False) -> None:
        samples = sampler.length
        if batch_size < 1 or samples < 1:
            raise ValueError(
                f"{samples} images in batches of {batch_size} make no batch: both must be 1 or more"
            )
        if drop_last and samples < batch_size:
            raise ValueError(
                f"{samples} training images make no full batch of {batch_size}: set a smaller "
                "train.batch-size, or keep the last batch (train.no-drop-last)."
            )
        self.sampler, self.batch_size = sampler, batch_size
        self.per_epoch = samples // batch_size if drop_last else -(-samples // batch_size)
        self._order: tuple[int, Tensor] = (-1, torch.empty(0, dtype=torch.int64))

    @property
    def sizes(self) -> tuple[int, ...]:
        """Samples of the last step of an epoch, and of the others."""
        last = min(self.sampler.length - (self.per_epoch - 1) * self.batch_size, self.batch_size)
        return tuple(sorted({last, self.batch_size if self.per_epoch > 1 else last}))

    def order(self, epoch: int) -> Tensor:
        """(M,) the samples of an epoch in order; the latest epoch is cached."""
        if self._order[0] != epoch:
            order = self.sampler.order(epoch)
            if order.shape != (self.sampler.length,):
                raise ValueError(
                    f"{type(self.sampler).__name__}.order({epoch}) has the shape "
                    f"{tuple(order.shape)} instead of ({self.sampler.length},), its length"
                )
            self._order = (epoch, order)
        return self._order[1]

    def index(self, step: int) -> Tensor:
        """(N,) int64 the samples of one step, on the CPU."""
        epoch, position = divmod(step, self.per_epoch)
        start = position * self.batch_size
        return self.order(epoch)[start : start + self.batch_size]


class Share:
    """This rank's part of every step; all of it if there is one rank.

    Args:
        accumulate: parts that the gradient of a step is accumulated over; a rank has its share of
            each.

    Raises:
        ValueError: a rank would have no sample in some step.
    """

    def __init__(self, order: Order, accumulate: int = 1) -> None:
        self.whole = world_size() == 1
        self.accumulate = accumulate
        self.blocks = 1
        if not self.whole:
            self.blocks = accumulate if accumulate > 1 else order.blocks
            require_rows(order.sizes, self.blocks)

    def own(self, rows: Tensor) -> Tensor:
        """This rank's rows (n, ...) of the rows of a step (N, ...)."""
        if self.whole:
            return rows
        return rows[own_positions(block_sizes(len(rows), self.blocks)).to(rows.device)]

    def parts(self, samples: int) -> dict[str, tuple[int, ...]]:
        """How many rows of each accumulated part this rank has in a batch of `samples`."""
        if self.whole or self.accumulate == 1:
            return {}
        return {"parts": own_sizes(block_sizes(samples, self.blocks))}


def order_of(
    samples: int,
    seed: int,
    batch_size: int,
    drop_last: bool,
    sampler: Sampler | None,
    steps: Order | None,
) -> Order:
    """The order of a feed: `steps` as they are, or the sampler's epochs in batches.

    Args:
        sampler: order of the samples in each epoch. None: every sample once, shuffled.
    """
    if steps is None:
        return Steps(Shuffle(samples, seed) if sampler is None else sampler, batch_size, drop_last)
    if sampler is not None:
        raise ValueError(
            "sampler and steps both set the order of the samples: give one of them, not both"
        )
    return steps


def augmentation_numbers(seed: int, step: int, samples: int, columns: int) -> Tensor:
    """(samples, columns) float64 uniform numbers of a step, drawn from (seed, step) alone."""
    draw = generator(seed, "augmentation", step)
    return torch.rand(samples, columns, generator=draw, dtype=torch.float64)


# Samplers besides Shuffle.

#: DeiT cuts an epoch of repeated images to a multiple of this.
ROUNDED_TO = 256


@dataclass(frozen=True, eq=False)
class ClassBalanced:
    """Every class equally often: rounds over all classes, each round in a new order.

    A class gives its images in a random order and starts again in another order after the last
    one. An epoch has as many samples as the data set; classes without images are left out.

    >>> labels = torch.tensor([0, 0, 0, 0, 0, 1])
    >>> labels[ClassBalanced(labels, seed=0).order(epoch=0)].bincount()
    tensor([3, 3])
    >>> labels[ClassBalanced(labels, seed=0, per_turn=2).order(epoch=0)]
    tensor([1, 1, 0, 0, 0, 0])
    """

    labels: Tensor  # (M,) classes of the samples
    seed: int
    stream: int = 0  # distinguishes samplers of one run
    per_turn: int = 1  # images of a class that follow one another, at its turn in a round

    @property
    def length(self) -> int:
        """M."""
        return len(self.labels)

    def order(self, epoch: int) -> Tensor:
        """(M,) positions drawn from (seed, epoch)."""
        draw = generator(self.seed, "order", epoch, self.stream)
        labels = self.labels.cpu()
        classes = labels.bincount().nonzero()[:, 0]
        rounds, each = -(-self.length // (len(classes) * self.per_turn)), self.per_turn
        members = ((labels == c).nonzero()[:, 0] for c in classes)
        shown = torch.stack([_cycled(own, rounds * each, draw) for own in members])
        shown = shown.view(-1, rounds, each).transpose(0, 1)  # (rounds, classes, each)
        turns = torch.rand(rounds, len(classes), generator=draw).argsort(1)
        picked = shown.gather(1, turns[..., None].expand(-1, -1, each))
        return picked.flatten()[: self.length]


@dataclass(frozen=True, eq=False)
class ReversedClasses:
    """Rare classes most often: a class by the inverse of its size, then any image of it.

    Draws are independent, so that an image may come twice. An epoch has as many samples as the data
    set; classes without images are left out.

    >>> labels = torch.tensor([0] * 900 + [1] * 100)
    >>> drawn = labels[ReversedClasses(labels, seed=0).order(epoch=0)]
    >>> bool(abs(drawn.double().mean() - 0.9) < 0.05)
    True
    """

    labels: Tensor  # (M,) classes of the samples
    seed: int
    stream: int = 0  # distinguishes samplers of one run

    @property
    def length(self) -> int:
        """M."""
        return len(self.labels)

    def order(self, epoch: int) -> Tensor:
        """(M,) positions drawn from (seed, epoch)."""
        draw = generator(self.seed, "order", epoch, self.stream)
        labels = self.labels.cpu()
        sizes = labels.bincount().double()
        chances = torch.where(sizes > 0, 1 / sizes.clamp(min=1), 0.0)
        classes = torch.multinomial(chances, self.length, replacement=True, generator=draw)
        within = torch.rand(self.length, generator=draw, dtype=torch.float64) * sizes[classes]
        first = sizes.cumsum(0) - sizes  # of each class, once the samples are sorted by class
        return labels.argsort(stable=True)[(first[classes] + within.floor()).long()]


@dataclass(frozen=True)
class Repeated:
    """Repeated augmentation: a part of the images, each `repeats` times in a row.

    The length of an epoch is the number of images rounded down to a multiple of 256 (unrounded
    below 256), so that it shows a third of the images three times, each time augmented differently.
    The last image of an epoch may come less often. DeiT shards these positions over its processes
    in turn; one process that takes them all sees the same images in each step.

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


@dataclass(frozen=True, eq=False)
class Mates:
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

    labels: Tensor  # (M,) classes of the samples
    seed: int

    @property
    def length(self) -> int:
        """M."""
        return len(self.labels)

    def order(self, epoch: int) -> Tensor:
        """(M,) positions drawn from (seed, epoch)."""
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


def sampler_named(
    name: Literal["shuffle", "class_balanced", "repeated", "mates"],
    labels: Tensor,
    seed: int,
    per_turn: int = 1,
) -> Sampler | None:
    """The sampler that a configuration names; None means every image once, shuffled."""
    if name == "class_balanced":
        return ClassBalanced(labels, seed, per_turn=per_turn)
    if name == "mates":
        return Mates(labels, seed)
    return Repeated(len(labels), seed) if name == "repeated" else None


def _cycled(members: Tensor, count: int, draw: torch.Generator) -> Tensor:
    """`count` members in cycles, each cycle in its own random order."""
    cycles = -(-count // len(members))
    turns = torch.rand(cycles, len(members), generator=draw).argsort(1)
    return members[turns.flatten()[:count]]


# Batches with the same number of samples from each of several domains.

#: Steps whose domains are drawn and counted together.
BLOCK = 256


class DomainSteps:
    """Steps with the same number of samples from each of some domains, one domain after the other.

    Each domain is an endless stream: all its samples in a random order, then all again in another
    order, and so on; a batch may hold the end of one pass and the beginning of the next. If a batch
    has fewer domains than there are, the domains of a step are drawn at random and come in the
    order of their numbers.

    Args:
        domain: (M,) number 0..D-1 of each sample's domain.
        groups: G, domains in a batch, at most D.
        each: samples of each of them.
        per_epoch: steps in an epoch. None: as many full batches as one pass over the largest
            domain has, at least one.

    >>> domain = torch.tensor([0, 0, 0, 0, 1, 1])
    >>> steps = DomainSteps(domain, groups=2, each=2, seed=0)
    >>> steps.per_epoch, domain[steps.index(step=7)]
    (2, tensor([0, 0, 1, 1]))
    """

    def __init__(
        self, domain: Tensor, groups: int, each: int, seed: int, per_epoch: int | None = None
    ) -> None:
        domain = domain.cpu()
        sizes = torch.bincount(domain).tolist()
        if not sizes or 0 in sizes:
            said = f"domain {sizes.index(0)} of {len(sizes)} has none" if sizes else "there is none"
            raise ValueError(f"every domain needs a sample, but {said}")
        if not 1 <= groups <= len(sizes):
            raise ValueError(
                f"a batch of {groups} domains cannot be made from {len(sizes)}: take 1 to "
                f"{len(sizes)}"
            )
        if each < 1 or (per_epoch is not None and per_epoch < 1):
            raise ValueError(
                f"{each} samples of each domain, and {per_epoch} steps an epoch: take 1 or more"
            )
        self.groups, self.each, self.seed = groups, each, seed
        self.per_epoch = max(max(sizes) // each, 1) if per_epoch is None else per_epoch
        self._members = [(domain == number).nonzero()[:, 0] for number in range(len(sizes))]
        self._passes: dict[int, tuple[int, Tensor]] = {}
        self._starts = [torch.zeros(len(sizes), dtype=torch.int64)]
        self._block: tuple[int, Tensor, Tensor] | None = None

    @property
    def blocks(self) -> int:
        """G: every rank has samples of each domain."""
        return self.groups

    @property
    def sizes(self) -> tuple[int, ...]:
        """G * each, in every step."""
        return (self.groups * self.each,)

    def index(self, step: int) -> Tensor:
        """(G * each,) int64 the samples of one step, on the CPU."""
        return torch.cat([self._taken(number, turn) for number, turn in self.turns(step)])

    def turns(self, step: int) -> list[tuple[int, int]]:
        """The G domains of a step, and how many earlier steps had each of them."""
        domains = len(self._members)
        if self.groups == domains:
            return [(number, step) for number in range(domains)]
        block, row = divmod(step, BLOCK)
        if self._block is None or self._block[0] != block:
            while len(self._starts) <= block:
                last = len(self._starts) - 1
                self._starts.append(self._starts[last] + self._drawn(last)[1].sum(0))
            chosen, taken = self._drawn(block)
            self._block = (block, chosen, self._starts[block] + taken.cumsum(0) - taken)
        _, chosen, before = self._block
        return [(number, int(before[row, number])) for number in chosen[row].tolist()]

    def _drawn(self, block: int) -> tuple[Tensor, Tensor]:
        """(BLOCK, G) sorted domains of a block's steps, and (BLOCK, D) 1 for those, 0 for others.

        One draw covers a block, so that counting up to a distant step takes few draws.
        """
        domains = len(self._members)
        draw = generator(self.seed, "order", block)
        keys = torch.rand(BLOCK, domains, generator=draw, dtype=torch.float64)
        chosen = keys.argsort(1)[:, : self.groups].sort(1).values
        return chosen, F.one_hot(chosen, domains).sum(1)

    def _taken(self, number: int, turn: int) -> Tensor:
        """(each,) samples of a domain at its turn 0, 1, 2, ..."""
        size, start = len(self._members[number]), turn * self.each
        parts, wanted = [], self.each
        while wanted:
            which, offset = divmod(start, size)
            part = self._pass(number, which)[offset : offset + wanted]
            parts.append(part)
            start, wanted = start + len(part), wanted - len(part)
        return torch.cat(parts)

    def _pass(self, number: int, which: int) -> Tensor:
        """All samples of a domain in the order of one pass; the latest is cached."""
        kept = self._passes.get(number)
        if kept is None or kept[0] != which:
            members = self._members[number]
            draw = generator(self.seed, "order", number, which)
            kept = (which, members[torch.randperm(len(members), generator=draw)])
            self._passes[number] = kept
        return kept[1]
