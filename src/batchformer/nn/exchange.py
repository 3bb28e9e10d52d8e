"""Ranks and rows: collectives, gathering of rows, what ranks tell one another, keyed dropout."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor
from torch import distributed as dist
from torch.autograd.function import once_differentiable

# What ``torch.compile`` does not look into: collectives, whose results ranks wait for.

F = TypeVar("F", bound=Callable[..., Any])


def uncompiled(function: F) -> F:
    """Leave a function out of what ``torch.compile`` traces: a graph break, and the same results.

    It is ``torch.compiler.disable``, but for importing the compiler when first called.
    """
    return cast("F", torch._disable_dynamo(function))  # type: ignore[attr-defined]


# The collectives themselves, here and nowhere else: their names in torch keep changing.
#
# All are called by every rank of a group, with tensors of one shape and type, and change them in
# place. A group is that of all ranks unless another is named.


def all_gather(x: Tensor, ranks: int, group: Any = None) -> list[Tensor]:
    """What each of so many ranks has here."""
    found = [torch.empty_like(x) for _ in range(ranks)]
    dist.all_gather(found, x, group=group)
    return found


def all_reduce_(x: Tensor, group: Any = None) -> None:
    """The sum over ranks."""
    dist.all_reduce(x, group=group)


def reduce_scatter(parts: Sequence[Tensor], group: Any = None) -> Tensor:
    """Of the sum over ranks of one part for each, that of this one; not with every backend."""
    own = torch.empty_like(parts[0])
    dist.reduce_scatter(own, list(parts), group=group)
    return own


def all_reduce_max_(x: Tensor, group: Any = None) -> None:
    """The largest of every number over ranks."""
    dist.all_reduce(x, op=dist.ReduceOp.MAX, group=group)


def broadcast_(x: Tensor, group: Any = None) -> None:
    """What rank 0 has."""
    dist.broadcast(x, src=0, group=group)


# Which ranks there are, and which one this is; without a process group there is one.

#: How deep this process is in blocks that it runs alone.
_alone = 0


@contextmanager
def as_single_rank() -> Iterator[None]:
    """Within it there is one rank: what is done here waits for no other.

    >>> with as_single_rank():
    ...     world_size()
    1
    """
    global _alone
    _alone += 1
    try:
        yield
    finally:
        _alone -= 1


def group_of(exchange: Any) -> Any:
    """The process group that ``exchange=`` names: a group, a mesh of one, or a bool for all."""
    if isinstance(exchange, bool):
        return None
    return exchange.get_group() if hasattr(exchange, "get_group") else exchange


def world_size(group: Any = None) -> int:
    """How many ranks there are, in a process group or, by default, in all.

    1 without an initialised process group, and within `alone`.
    """
    if _alone or not dist.is_available() or not dist.is_initialized():
        return 1
    return dist.get_world_size(group)


def rank(group: Any = None) -> int:
    """The number of this one, from 0, in a process group or, by default, among all."""
    return dist.get_rank(group) if world_size(group) > 1 else 0


def is_rank_zero() -> bool:
    """Whether this is the rank that writes and speaks."""
    return rank() == 0


# Rows of a batch between the ranks of a process group; without one, there is one rank.
#
# The group is that of all ranks unless another is named.


def row_counts(x: Tensor, group: Any = None) -> list[int]:
    """How many rows every rank has; they are read back from the device if there are several.

    >>> row_counts(torch.zeros(3, 2))
    [3]
    """
    if world_size(group) == 1:
        return [len(x)]
    own = torch.tensor([len(x)], device=x.device)
    counts: list[int] = torch.cat(all_gather(own, world_size(group), group)).tolist()
    return counts


def rows_of_rank(counts: Sequence[int], group: Any = None) -> slice:
    """Where the rows of this rank are among those of all.

    >>> rows_of_rank([3])
    slice(0, 3, None)
    """
    ends, number = list(accumulate(counts)), rank(group)
    return slice(ends[number] - counts[number], ends[number])


@torch.no_grad()
def gather(x: Tensor, counts: Sequence[int] | None = None, group: Any = None) -> Tensor:
    """The rows of all ranks (M, ...) in their order, without gradients; ``x`` itself on one rank.

    Every rank calls it, each with as many rows (N, ...) as it has, none included.

    Args:
        x: of the same type and, but for its rows, shape on every rank.
        counts: what :func:`row_counts` gave for as many rows; None asks again.
    """
    if world_size(group) == 1:
        return x.detach()
    counts = row_counts(x, group) if counts is None else counts
    found = all_gather(_filled(x, max(counts)), world_size(group), group)
    return torch.cat([rows[:count] for rows, count in zip(found, counts, strict=True)])


@uncompiled
def gather_rows(x: Tensor, counts: Sequence[int] | None = None, group: Any = None) -> Tensor:
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
    if world_size(group) == 1:
        return x
    counts = row_counts(x, group) if counts is None else list(counts)
    rows: Tensor = _GatherRows.apply(x, counts, group)
    return rows


class _GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, counts: list[int], group: Any) -> Tensor:
        ctx.counts, ctx.group = counts, group
        return gather(x, counts, group)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return _summed_own_rows(gradient, ctx.counts, ctx.group), None, None


@uncompiled
@torch.no_grad()
def total_rows(rows: int, device: torch.device, group: Any = None) -> Tensor:
    """How many rows all ranks have together, 0-d on the device; every rank calls it."""
    found = torch.tensor(rows, device=device)
    if world_size(group) > 1:
        all_reduce_(found, group)
    return found


def _filled(x: Tensor, rows: int) -> Tensor:
    """Collectives need parts of one size: shorter ones are filled up, and cut afterwards."""
    filled = x.new_zeros(rows, *x.shape[1:])
    filled[: len(x)] = x
    return filled


def summed(x: Tensor, group: Any = None) -> Tensor:
    """The sum over several ranks, a new tensor."""
    total = x.clone(memory_format=torch.contiguous_format)
    all_reduce_(total, group)
    return total


def _scatters(x: Tensor, group: Any = None) -> bool:
    """Whether the backend sums and deals in one go; gloo does not in every version."""
    return x.is_cuda and "nccl" in dist.get_backend(group)


def _summed_own_rows(x: Tensor, counts: Sequence[int], group: Any = None) -> Tensor:
    """The sum over ranks of (M, ...), of which each rank keeps its own rows (N, ...)."""
    if not _scatters(x, group):
        return summed(x, group)[rows_of_rank(counts, group)]
    parts = [_filled(part, max(counts)) for part in torch.split(x, list(counts))]
    return reduce_scatter(parts, group)[: counts[rank(group)]]


# What ranks tell one another before their samples attend: how many there are, and a seed.


class AllRows(NamedTuple):
    """The rows of all ranks in one step.

    Attributes:
        counts: how many every rank has.
        own: which of them are this rank's.
        seed: of the step's dropout, the same on every rank: int64, 0-d, on the device.
        group: the process group of these ranks; None for that of all.
    """

    counts: list[int]
    own: slice
    seed: Tensor
    group: Any = None

    @property
    def total(self) -> int:
        return sum(self.counts)


@uncompiled
@torch.no_grad()
def agree_on_rows(
    rows: int, positions: int, device: torch.device, *, draw: bool, group: Any = None
) -> AllRows:
    """Tell all ranks how many rows are here, and agree on a seed; every rank calls it.

    Every rank draws a seed from torch's generator of the device, so that the generators of all
    advance alike, and that of rank 0 holds: the one process with the same generator draws the same.

    Args:
        rows: of this rank; none is fine.
        positions: that each row has; the same on every rank.
        draw: whether a seed is needed; without it the generator is left alone.
        group: the process group whose ranks attend to one another; None for that of all.

    Raises:
        ValueError: on every rank, if the positions differ.
    """
    seed = torch.zeros(1, dtype=torch.int64, device=device)
    if draw:
        seed = torch.randint(2**62, (1,), device=device)
    if world_size(group) == 1:
        return AllRows([rows], slice(0, rows), seed[0], group)
    own = torch.cat((torch.tensor([rows, positions]).to(device), seed))
    found = torch.stack(all_gather(own, world_size(group), group))
    counts, shapes = (list(column) for column in zip(*found[:, :2].tolist(), strict=True))
    if len(set(shapes)) > 1:
        raise ValueError(
            f"exchange: the ranks have {shapes} positions (tokens, pixels) for each sample, but "
            f"samples of all ranks can only attend to one another at the same positions. Pad or "
            f"crop all to one size, or train with exchange=False."
        )
    return AllRows(counts, rows_of_rank(counts, group), found[0, 2], group)


# Dropout as a function of (seed, layer, place, row, position, column), in operations of torch.
#
# A row's mask depends on its number among the rows of all ranks, not on the rank that computes it.
# The bits are those of a counter-based generator: the finaliser of SplitMix64 (Steele et al.,
# 2014), applied once for each of the coordinates.

#: Where dropout acts in a layer.
ON_WEIGHTS, AFTER_ATTENTION, IN_FEED_FORWARD, AFTER_FEED_FORWARD = range(4)
#: Values that the bits which decide can take.
STEPS = 2**32
#: The step of Weyl's sequence and the multipliers of the finaliser, as signed 64-bit numbers.
WEYL = 0x9E3779B97F4A7C15 - 2**64
FIRST, SECOND = 0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64


@dataclass(frozen=True)
class KeyedDropout:
    """Dropout of one layer, for a block of the rows of all ranks.

    Attributes:
        probability: of dropping an element; what is kept is scaled to leave the mean as it was.
        seed: of the step, int64, 0-d.
        layer: number of the layer.
        first_row: number, among those of all ranks, of the first row.
    """

    probability: float
    seed: Tensor
    layer: int = 0
    first_row: int = 0

    def __call__(
        self, x: Tensor, *, place: int, first_row: int = 0, first_column: int = 0
    ) -> Tensor:
        """Drop elements of ``(..., N, K)``: positions, rows, columns.

        Args:
            place: one of the four.
            first_row: of x within the block.
            first_column: number of the first column, where x does not hold all.
        """
        if not self.probability:
            return x
        threshold = round(self.probability * STEPS)
        scale = STEPS / (STEPS - threshold) if threshold < STEPS else 0.0
        first = self.first_row + first_row, first_column
        bits = random_bits(self.seed, self.layer, place, x.shape, first)
        return torch.where(bits >= threshold, x, 0.0) * scale


@torch.no_grad()
def random_bits(
    seed: Tensor, layer: int, place: int, shape: torch.Size, first: tuple[int, int] = (0, 0)
) -> Tensor:
    """Numbers in [0, 2³²) of ``(..., N, K)``, each a function of its coordinates and the seed.

    Args:
        first: numbers of the first row and of the first column.

    >>> all_rows = random_bits(torch.tensor(7), 0, 1, torch.Size((5, 3)))
    >>> torch.equal(all_rows[2:], random_bits(torch.tensor(7), 0, 1, torch.Size((3, 3)), (2, 0)))
    True
    """
    *axes, rows, columns = shape
    positions = 1
    for size in axes:
        positions *= size

    def numbers(start: int, count: int) -> Tensor:
        return torch.arange(start, start + count, device=seed.device)

    state = _next(_next(seed, numbers(layer, 1)), numbers(place, 1))
    state = _next(state, numbers(first[0], rows).view(rows, 1))
    state = _next(state, numbers(0, positions).view(positions, 1, 1))
    state = _next(state, numbers(first[1], columns))
    return _shifted(state, 32).view(shape)


def _next(state: Tensor, number: Tensor) -> Tensor:
    """The state after one more coordinate; products wrap around, as they should."""
    x = state + (number + 1) * WEYL
    x = torch.bitwise_xor(x, _shifted(x, 30)) * FIRST
    x = torch.bitwise_xor(x, _shifted(x, 27)) * SECOND
    return torch.bitwise_xor(x, _shifted(x, 31))


def _shifted(x: Tensor, by: int) -> Tensor:
    """``x >> by`` as of unsigned numbers."""
    return torch.bitwise_and(x >> by, 2 ** (64 - by) - 1)
