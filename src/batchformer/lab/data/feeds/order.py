"""Which samples a step takes: a function of the step, so that resuming needs no state."""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from batchformer.lab.data.feeds.samplers import Sampler
from batchformer.nn.randomness import generator


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
        """All batch sizes N that a step may have."""

    def index(self, step: int) -> Tensor:
        """(N,) int64 the samples of one step, on the CPU; N may differ between steps."""


class Steps:
    """The epochs of a sampler one after the other, cut into batches.

    A batch never spans two epochs: the last one of an epoch is smaller, or is left out.

    >>> from batchformer.lab.data.feeds.samplers import Shuffle
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
                f"{samples} images make no full batch of {batch_size}: set a smaller "
                "train.batch-size, or keep the last batch if train.drop-last is on "
                "(train.no-drop-last)."
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
            self._order = (epoch, self.sampler.order(epoch))
        return self._order[1]

    def index(self, step: int) -> Tensor:
        epoch, position = divmod(step, self.per_epoch)
        start = position * self.batch_size
        return self.order(epoch)[start : start + self.batch_size]


def augmentation_numbers(seed: int, step: int, samples: int, columns: int) -> Tensor:
    """(samples, columns) float64 uniform numbers of a step, drawn from (seed, step) alone."""
    draw = generator(seed, "augmentation", step)
    return torch.rand(samples, columns, generator=draw, dtype=torch.float64)


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
        return (self.groups * self.each,)

    def index(self, step: int) -> Tensor:
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
