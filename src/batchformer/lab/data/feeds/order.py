"""Which samples a step takes: a function of the step, so that resuming needs no state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from batchformer.lab.data.feeds.sharding import block_sizes, own_positions, own_sizes, require_rows
from batchformer.nn.exchange import ranks
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
        """Blocks of rows that each step consists of, of which every rank has a part."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Every number N of samples that a step may have."""

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
    """The sampler's epochs one after the other, cut into batches.

    A batch never spans two epochs: the last one of an epoch is smaller, or left out.

    Args:
        sampler: order of the samples in each epoch.
        batch_size: samples in a batch.
        drop_last: leave out the last, smaller batch of an epoch.

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
            raise ValueError(f"{samples} images in batches of {batch_size} make no batch")
        if drop_last and samples < batch_size:
            raise ValueError(
                f"{samples} training images make no full batch of {batch_size}: set a smaller "
                f"train.batch-size, or keep the last batch (train.no-drop-last)."
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
        """(M,) the samples of an epoch in order; the last epoch asked for is kept."""
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
    """The part of this rank in every step of an order; all of it where there is one rank.

    Args:
        order: which samples each step takes.
        accumulate: parts that a step is accumulated of; a rank has its share of each.

    Raises:
        ValueError: a rank would have no sample in some step.
    """

    def __init__(self, order: Order, accumulate: int = 1) -> None:
        self.whole = ranks() == 1
        self.accumulate = accumulate
        self.blocks = 1
        if not self.whole:
            self.blocks = accumulate if accumulate > 1 else order.blocks
            require_rows(order.sizes, self.blocks)

    def own(self, rows: Tensor) -> Tensor:
        """The rows of this rank (n, ...) of those of a step (N, ...)."""
        if self.whole:
            return rows
        return rows[own_positions(block_sizes(len(rows), self.blocks)).to(rows.device)]

    def parts(self, samples: int) -> dict[str, tuple[int, ...]]:
        """How many rows of each accumulated part are here, for a batch of so many samples."""
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
    """The order that a feed is asked for: `steps` as they are, or the sampler's in batches.

    Args:
        samples: in the data set.
        seed: of the shuffled epochs that there are without a sampler.
        batch_size: samples in a batch.
        drop_last: leave out the last, smaller batch of an epoch.
        sampler: order of the samples in each epoch. None: every sample once, shuffled.
        steps: in place of all the others.
    """
    if steps is None:
        return Steps(Shuffle(samples, seed) if sampler is None else sampler, batch_size, drop_last)
    if sampler is not None:
        raise ValueError(
            "sampler and steps both say which samples come when: give one of them, not both"
        )
    return steps
