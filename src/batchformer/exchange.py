"""Rows of a batch between the ranks of a process group; without one, there is one rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor
from torch import distributed as dist
from torch.autograd.function import once_differentiable

from batchformer.collectives import add_up_, add_up_and_deal, from_all

F = TypeVar("F", bound=Callable[..., Any])


def uncompiled(function: F) -> F:
    """Leave a function out of what ``torch.compile`` traces: a graph break, and the same results.

    It is ``torch.compiler.disable``, but for importing the compiler when first called.
    """
    return cast("F", torch._disable_dynamo(function))  # type: ignore[attr-defined]


#: How deep this process is in blocks that it runs alone.
_alone = 0


@contextmanager
def alone() -> Iterator[None]:
    """Within it there is one rank: what is done here waits for no other.

    >>> with alone():
    ...     ranks()
    1
    """
    global _alone
    _alone += 1
    try:
        yield
    finally:
        _alone -= 1


def ranks() -> int:
    """How many ranks there are; 1 without an initialised process group, and within `alone`."""
    if _alone or not dist.is_available() or not dist.is_initialized():
        return 1
    return dist.get_world_size()


def rank() -> int:
    """The number of this one, from 0."""
    return dist.get_rank() if ranks() > 1 else 0


def leads() -> bool:
    """Whether this is the rank that writes and speaks."""
    return rank() == 0


def row_counts(x: Tensor) -> list[int]:
    """How many rows every rank has; they are read back from the device if there are several.

    >>> row_counts(torch.zeros(3, 2))
    [3]
    """
    if ranks() == 1:
        return [len(x)]
    counts: list[int] = torch.cat(_from_all(torch.tensor([len(x)], device=x.device))).tolist()
    return counts


def own_rows(counts: Sequence[int]) -> slice:
    """Where the rows of this rank are among those of all.

    >>> own_rows([3])
    slice(0, 3, None)
    """
    ends, number = list(accumulate(counts)), rank()
    return slice(ends[number] - counts[number], ends[number])


@torch.no_grad()
def gather(x: Tensor, counts: Sequence[int] | None = None) -> Tensor:
    """The rows of all ranks (M, ...) in their order, without gradients; ``x`` itself on one rank.

    Every rank calls it, each with as many rows (N, ...) as it has, none included.

    Args:
        x: of the same type and, but for its rows, shape on every rank.
        counts: what :func:`row_counts` gave for as many rows; None asks again.
    """
    if ranks() == 1:
        return x.detach()
    counts = row_counts(x) if counts is None else counts
    found = _from_all(_filled(x, max(counts)))
    return torch.cat([rows[:count] for rows, count in zip(found, counts, strict=True)])


@uncompiled
def gather_rows(x: Tensor, counts: Sequence[int] | None = None) -> Tensor:
    """The rows of all ranks (M, ...) in their order, with gradients; ``x`` itself on one rank.

    Every rank calls it, and every rank's loss must depend on what it gave: the backward pass is a
    collective too. The gradient of a row is the *sum* of what the losses of all ranks have for it.
    This is what makes the parameters' gradients exact after ``DistributedDataParallel`` has
    averaged them: with W ranks and the loss of a rank W times its share of the global loss (the
    mean over its rows, where all ranks have as many), the sum is W times the global loss's
    gradient, each rank turns its own rows' part of it into gradients of the parameters, and the
    average divides the sum of these parts by W. A mean here would divide by W twice.

    Args:
        x: (N, ...), of any number of rows on each rank, none included.
        counts: what :func:`row_counts` gave for as many rows; None asks again.
    """
    if ranks() == 1:
        return x
    rows: Tensor = _GatherRows.apply(x, row_counts(x) if counts is None else list(counts))
    return rows


class _GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, counts: list[int]) -> Tensor:
        ctx.counts = counts
        return gather(x, counts)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _summed_own_rows(gradient, ctx.counts), None


class AllRows(NamedTuple):
    """The rows of all ranks in one step.

    Attributes:
        counts: how many every rank has.
        own: which of them are this rank's.
        seed: of the step's dropout, the same on every rank: int64, 0-d, on the device.
    """

    counts: list[int]
    own: slice
    seed: Tensor

    @property
    def total(self) -> int:
        return sum(self.counts)


@uncompiled
@torch.no_grad()
def meet(rows: int, positions: int, device: torch.device, *, draw: bool) -> AllRows:
    """Tell all ranks how many rows are here, and agree on a seed; every rank calls it.

    Every rank draws a seed from torch's generator of the device, so that the generators of all
    advance alike, and that of rank 0 holds: the one process with the same generator draws the same.

    Args:
        rows: of this rank; none is fine.
        positions: that each row has; the same on every rank.
        draw: whether a seed is needed; without it the generator is left alone.

    Raises:
        ValueError: on every rank, if the positions differ.
    """
    seed = torch.zeros(1, dtype=torch.int64, device=device)
    if draw:
        seed = torch.randint(2**62, (1,), device=device)
    if ranks() == 1:
        return AllRows([rows], slice(0, rows), seed[0])
    found = torch.stack(_from_all(torch.cat((torch.tensor([rows, positions]).to(device), seed))))
    counts, shapes = (list(column) for column in zip(*found[:, :2].tolist(), strict=True))
    if len(set(shapes)) > 1:
        raise ValueError(
            f"exchange: the ranks have {shapes} positions (tokens, pixels) for each sample, but "
            f"samples of all ranks can only attend to one another at the same positions. Pad or "
            f"crop all to one size, or train with exchange=False."
        )
    return AllRows(counts, own_rows(counts), found[0, 2])


@uncompiled
@torch.no_grad()
def total_rows(rows: int, device: torch.device) -> Tensor:
    """How many rows all ranks have together, 0-d on the device; every rank calls it."""
    found = torch.tensor(rows, device=device)
    if ranks() > 1:
        add_up_(found)
    return found


class Traffic(NamedTuple):
    """Bytes."""

    sent: int
    received: int


def traffic(
    counts: Sequence[int],
    dim: int,
    layers: int = 1,
    element_bytes: int = 4,
    *,
    positions: int = 1,
    scatter: bool = False,
) -> Traffic:
    """What a rank sends and receives in a training step of one ``BatchFormer(exchange=True)``.

    The same for every rank, as shorter ranks are filled up. Counted is what a rank hands to the
    collectives for others, and what it gets from them; how often the wires carry it depends on the
    algorithm (a ring passes on what others sent). The gradients that DDP averages are not counted.

    Args:
        counts: rows of every rank.
        dim: channels C.
        element_bytes: of keys and values: 4 in float32, 2 where autocast makes them half.
        positions: of each row.
        scatter: gradients are summed by reduce-scatter, as with NCCL, not by all-reduce.

    >>> traffic([32] * 8, dim=2048)
    Traffic(sent=4718616, received=7864488)
    """
    others, most = len(counts) - 1, max(counts)
    if not others:
        return Traffic(0, 0)
    greeting = 3 * 8  # rows, positions and seed, in int64
    row = layers * positions * 2 * dim * element_bytes
    summed = (others * most, most) if scatter else (sum(counts),) * 2
    return Traffic(
        sent=greeting + row * (most + summed[0]),
        received=others * greeting + row * (others * most + summed[1]),
    )


class Shuffled(NamedTuple):
    """What undoes a shuffle: the order of all rows, and how many every rank has."""

    order: Tensor
    counts: list[int]


@torch.no_grad()
def shuffle(x: Tensor, seed: int) -> tuple[Tensor, Shuffled | None]:
    """Deal the rows of all ranks anew, to each as many as it had, without gradients.

    Statistics of a batch are then not those of the samples that a rank compares. The order is a
    function of the seed, so that nobody has to send it. On one rank every order has the same
    statistics, and ``x`` itself is returned.

    Args:
        x: (N, ...), of any number of rows on each rank.
        seed: the same on every rank.
    """
    if ranks() == 1:
        return x, None
    counts = row_counts(x)
    draw = torch.Generator().manual_seed(seed)
    order = torch.randperm(sum(counts), generator=draw).to(x.device)
    dealt = gather(x, counts)[order[own_rows(counts)]]
    return torch.empty_like(x).copy_(dealt), Shuffled(order, counts)  # its memory format is kept


@torch.no_grad()
def unshuffle(rows: Tensor, shuffled: Shuffled | None) -> Tensor:
    """The rows of this rank in their first order, of what was made of shuffled ones.

    Args:
        rows: (N, ...), one for each row that :func:`shuffle` gave.
        shuffled: what it gave beside them.
    """
    if shuffled is None:
        return rows
    order, counts = shuffled
    return gather(rows, counts)[order.argsort()[own_rows(counts)]]


def _filled(x: Tensor, rows: int) -> Tensor:
    """Collectives need parts of one size: shorter ones are filled up, and cut afterwards."""
    filled = x.new_zeros(rows, *x.shape[1:])
    filled[: len(x)] = x
    return filled


def _from_all(x: Tensor) -> list[Tensor]:
    """What every rank has here, of one shape."""
    return from_all(x, ranks())


def summed(x: Tensor) -> Tensor:
    """The sum over several ranks, a new tensor."""
    total = x.clone(memory_format=torch.contiguous_format)
    add_up_(total)
    return total


def _scatters(x: Tensor) -> bool:
    """Whether the backend sums and deals in one go; gloo does not in every version."""
    return x.is_cuda and "nccl" in dist.get_backend()


def _summed_own_rows(x: Tensor, counts: Sequence[int]) -> Tensor:
    """The sum over ranks of (M, ...), of which each rank keeps its own rows (N, ...)."""
    if not _scatters(x):
        return summed(x)[own_rows(counts)]
    parts = [_filled(part, max(counts)) for part in torch.split(x, list(counts))]
    return add_up_and_deal(parts)[: counts[rank()]]
