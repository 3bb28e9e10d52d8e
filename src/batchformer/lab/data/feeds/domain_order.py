"""Batches of so many samples from each of several domains, as a function of the step."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from batchformer.nn.randomness import generator

#: Steps whose domains are drawn, and counted, together.
BLOCK = 256


class DomainSteps:
    """Which samples a step takes: domains one after the other, the same number of each.

    Each domain is an endless stream of its own: all its samples in a random order, then all again
    in another, and so on; a batch may hold the end of one pass and the beginning of the next. If a
    batch has fewer domains than there are, those of a step are drawn at random and stand in the
    order of their numbers.

    Args:
        domain: (M,) number 0..D-1 of each sample's domain.
        groups: G, domains in a batch, at most D.
        each: samples of each of them.
        seed: of the run.
        per_epoch: steps in an epoch. None: as many as the largest domain needs for a pass if it is
            in every batch, without its last, smaller batch; at least one.

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
                f"a batch of {groups} domains cannot be had from {len(sizes)}: take 1 to "
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
        """The G domains of a step, and how many steps before it had each of them."""
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

        One draw for a whole block: counts up to a distant step take few.
        """
        domains = len(self._members)
        draw = generator(self.seed, "order", block)
        keys = torch.rand(BLOCK, domains, generator=draw, dtype=torch.float64)
        chosen = keys.argsort(1)[:, : self.groups].sort(1).values
        return chosen, F.one_hot(chosen, domains).sum(1)

    def _taken(self, number: int, turn: int) -> Tensor:
        """(each,) what a domain gives at its turn 0, 1, 2, ..."""
        size, start = len(self._members[number]), turn * self.each
        parts, wanted = [], self.each
        while wanted:
            which, offset = divmod(start, size)
            part = self._pass(number, which)[offset : offset + wanted]
            parts.append(part)
            start, wanted = start + len(part), wanted - len(part)
        return torch.cat(parts)

    def _pass(self, number: int, which: int) -> Tensor:
        """All samples of a domain in the order of one pass; the last asked for is kept."""
        kept = self._passes.get(number)
        if kept is None or kept[0] != which:
            members = self._members[number]
            draw = generator(self.seed, "order", number, which)
            kept = (which, members[torch.randperm(len(members), generator=draw)])
            self._passes[number] = kept
        return kept[1]
