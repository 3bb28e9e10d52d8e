"""Samples of all ranks: collectives, gathering of rows, and dropout that ranks agree on.

Without a process group there is one rank. Every ``group`` argument is a process group; None means
all ranks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch import distributed as dist
from torch.autograd.function import once_differentiable

from batchformer.torch_private import uncompiled

# ---- Collectives. Every rank of the group calls them, with tensors of one shape and type.


def all_gather(x: Tensor, ranks: int, group: Any = None) -> list[Tensor]:
    """The tensors x of all ``ranks`` ranks, in the order of the ranks."""
    found = [torch.empty_like(x) for _ in range(ranks)]
    dist.all_gather(found, x, group=group)
    return found


def all_reduce_(x: Tensor, group: Any = None) -> None:
    """Replace x by its sum over ranks."""
    dist.all_reduce(x, group=group)


def reduce_scatter(parts: Sequence[Tensor], group: Any = None) -> Tensor:
    """Sum ``parts[r]`` over ranks and return this rank's sum; not every backend has it."""
    own = torch.empty_like(parts[0])
    dist.reduce_scatter(own, list(parts), group=group)
    return own


def all_reduce_max_(x: Tensor, group: Any = None) -> None:
    """Replace every element of x by its maximum over ranks."""
    dist.all_reduce(x, op=dist.ReduceOp.MAX, group=group)


def broadcast_(x: Tensor, group: Any = None) -> None:
    """Replace x by the tensor of rank 0."""
    dist.broadcast(x, src=0, group=group)


# ---- Ranks.

#: How many :func:`as_single_rank` blocks this process is in.
_single_rank_depth = 0


@contextmanager
def as_single_rank() -> Iterator[None]:
    """Within the block :func:`world_size` is 1, so nothing waits for another rank.

    >>> with as_single_rank():
    ...     world_size()
    1
    """
    global _single_rank_depth
    _single_rank_depth += 1
    try:
        yield
    finally:
        _single_rank_depth -= 1


def group_of(exchange: Any) -> Any:
    """The process group of an ``exchange=`` that is a group or a one-dimensional mesh.

    Raises:
        ValueError: it is something else, or a group without this rank.
    """
    group = exchange.get_group() if hasattr(exchange, "get_group") else exchange
    if not (dist.is_available() and isinstance(group, dist.ProcessGroup)):
        raise ValueError(
            f"exchange={exchange!r}; use True for all ranks, a process group to which this rank "
            f"belongs, a mesh of one dimension, or False."
        )
    return group


def world_size(group: Any = None) -> int:
    """The number of ranks; 1 without an initialised process group or in :func:`as_single_rank`."""
    if _single_rank_depth or not dist.is_available() or not dist.is_initialized():
        return 1
    return dist.get_world_size(group)


def rank(group: Any = None) -> int:
    """The number of this rank, from 0."""
    return dist.get_rank(group) if world_size(group) > 1 else 0


def is_rank_zero() -> bool:
    """Whether this is rank 0, which writes files and prints."""
    return rank() == 0


# ---- Rows of all ranks.


def row_counts(x: Tensor, group: Any = None) -> list[int]:
    """The number of rows on each rank. With several ranks, this waits for the device.

    >>> row_counts(torch.zeros(3, 2))
    [3]
    """
    if world_size(group) == 1:
        return [len(x)]
    own = torch.tensor([len(x)], device=x.device)
    counts: list[int] = torch.cat(all_gather(own, world_size(group), group)).tolist()
    return counts


def rows_of_rank(counts: Sequence[int], group: Any = None) -> slice:
    """Where this rank's rows are among those of all ranks.

    >>> rows_of_rank([3])
    slice(0, 3, None)
    """
    ends, number = list(accumulate(counts)), rank(group)
    return slice(ends[number] - counts[number], ends[number])


@torch.no_grad()
def gather(x: Tensor, counts: Sequence[int] | None = None, group: Any = None) -> Tensor:
    """The rows of all ranks (M, ...) in their order, without gradients; ``x`` itself on one rank.

    Every rank calls it.

    Args:
        x: (N, ...). N may differ between ranks and be 0; type and other axes must be the same.
        counts: the result of :func:`row_counts`, if it is known already.
    """
    if world_size(group) == 1:
        return x.detach()
    counts = row_counts(x, group) if counts is None else counts
    found = all_gather(_filled(x, max(counts)), world_size(group), group)
    return torch.cat([rows[:count] for rows, count in zip(found, counts, strict=True)])


@uncompiled
def gather_rows(x: Tensor, counts: Sequence[int] | None = None, group: Any = None) -> Tensor:
    """The rows of all ranks (M, ...) in their order, with gradients; ``x`` itself on one rank.

    Every rank calls it, and every rank's loss must depend on the result, because the backward pass
    is a collective too. The gradient of a row is the *sum* of its gradients from the losses of all
    ranks. This makes the parameters' gradients exact once ``DistributedDataParallel`` has averaged
    them. With W ranks, let the loss of a rank be W times its share of the global loss (the mean
    over its rows, if all ranks have equally many). The summed gradient of a row is then W times
    that of the global loss. Each rank backpropagates its own rows, and DDP divides the sum over
    ranks by W. A mean here would divide by W twice.

    Args:
        x: (N, ...). N may differ between ranks and be 0.
        counts: the result of :func:`row_counts`, if it is known already.
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
    """The number of rows on all ranks, 0-d on the device; every rank calls it."""
    found = torch.tensor(rows, device=device)
    if world_size(group) > 1:
        all_reduce_(found, group)
    return found


def _filled(x: Tensor, rows: int) -> Tensor:
    """Pad ``(N, ...)`` with zeros to ``rows`` rows: collectives need parts of one size."""
    filled = x.new_zeros(rows, *x.shape[1:])
    filled[: len(x)] = x
    return filled


def summed(x: Tensor, group: Any = None) -> Tensor:
    """The sum over ranks, as a new tensor."""
    total = x.clone(memory_format=torch.contiguous_format)
    all_reduce_(total, group)
    return total


def _has_reduce_scatter(x: Tensor, group: Any = None) -> bool:
    """Whether the backend has reduce_scatter; gloo does not in every version."""
    return x.is_cuda and "nccl" in dist.get_backend(group)


def _summed_own_rows(x: Tensor, counts: Sequence[int], group: Any = None) -> Tensor:
    """Sum (M, ...) over ranks and return this rank's own rows of the sum, (N, ...)."""
    if not _has_reduce_scatter(x, group):
        return summed(x, group)[rows_of_rank(counts, group)]
    parts = [_filled(part, max(counts)) for part in torch.split(x, list(counts))]
    return reduce_scatter(parts, group)[: counts[rank(group)]]


# ---- What ranks agree on before their samples attend to one another.


class AllRows(NamedTuple):
    """The rows of all ranks in one step."""

    counts: list[int]  # the number of rows on each rank
    own: slice  # this rank's rows among them
    seed: Tensor  # seed of the step's dropout, equal on all ranks: int64, 0-d, on the device
    group: Any = None  # the process group of these ranks; None for all ranks

    @property
    def total(self) -> int:
        return sum(self.counts)


@uncompiled
@torch.no_grad()
def agree_on_rows(
    rows: int, positions: int, device: torch.device, *, draw: bool, group: Any = None
) -> AllRows:
    """Exchange the numbers of rows and agree on a dropout seed; every rank calls it.

    Every rank draws a seed from torch's generator of the device, so all generators advance alike.
    The seed of rank 0 is used: a single process with that generator would draw the same one.

    Args:
        rows: the number of rows on this rank; may be 0.
        positions: the number of positions in each row; the same on every rank.
        draw: whether a seed is needed. If not, the generator does not advance.

    Raises:
        ValueError: on every rank, if the positions differ.
    """
    seed = torch.zeros(1, dtype=torch.int64, device=device)
    if draw:
        seed = torch.randint(2**62, (1,), device=device)
    if world_size(group) == 1:
        return AllRows([rows], slice(0, rows), seed[0], group)
    own = torch.cat((torch.tensor([rows, positions], device=device), seed))
    found = torch.stack(all_gather(own, world_size(group), group))
    counts, shapes = (list(column) for column in zip(*found[:, :2].tolist(), strict=True))
    if len(set(shapes)) > 1:
        raise ValueError(
            f"exchange: samples have {shapes} positions (tokens, pixels) on the different ranks, "
            f"but they attend to one another position by position. Pad or crop all to one size, "
            f"or train with exchange=False."
        )
    return AllRows(counts, rows_of_rank(counts, group), found[0, 2], group)


# ---- Dropout as a function of (seed, layer, place, row, position, column).
#
# A row's mask depends on its number among the rows of all ranks, not on the rank that computes it.
# The bits come from a counter-based generator: the finaliser of SplitMix64 (Steele et al., 2014),
# applied once for each coordinate. Only operations of torch are used.

#: Where dropout acts in a layer.
ON_WEIGHTS, AFTER_ATTENTION, IN_FEED_FORWARD, AFTER_FEED_FORWARD = range(4)
#: The number of values that the random bits can take.
STEPS = 2**32
#: The step of Weyl's sequence and the multipliers of the finaliser, as signed 64-bit numbers.
WEYL = 0x9E3779B97F4A7C15 - 2**64
FIRST, SECOND = 0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64


@dataclass(frozen=True)
class KeyedDropout:
    """Dropout of one layer, for a block of the rows of all ranks."""

    probability: float  # of dropping an element; the others are scaled up, so the mean stays
    seed: Tensor  # seed of the step: int64, 0-d
    layer: int = 0  # number of the layer
    first_row: int = 0  # number of the first row among the rows of all ranks

    def __call__(
        self, x: Tensor, *, place: int, first_row: int = 0, first_column: int = 0
    ) -> Tensor:
        """Drop elements of ``(..., N, K)``: positions, rows, columns.

        Args:
            place: one of the four above.
            first_row: number of the first row of x within the block.
            first_column: number of the first column of x.
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
    """Numbers in [0, 2³²), ``(..., N, K)``, each a function of its coordinates and the seed.

    Args:
        first: numbers of the first row and of the first column.

    >>> all_rows = random_bits(torch.tensor(7), 0, 1, torch.Size((5, 3)))
    >>> torch.equal(all_rows[2:], random_bits(torch.tensor(7), 0, 1, torch.Size((3, 3)), (2, 0)))
    True
    """
    *axes, rows, columns = shape
    positions = math.prod(axes)

    def numbers(start: int, count: int) -> Tensor:
        return torch.arange(start, start + count, device=seed.device)

    state = _next(_next(seed, numbers(layer, 1)), numbers(place, 1))
    state = _next(state, numbers(first[0], rows).view(rows, 1))
    state = _next(state, numbers(0, positions).view(positions, 1, 1))
    state = _next(state, numbers(first[1], columns))
    return _shifted(state, 32).view(shape)


def _next(state: Tensor, number: Tensor) -> Tensor:
    """The state after one more coordinate. Products wrap around, as intended."""
    # ~number is -1 - number, so this adds (number + 1) * WEYL. Written in that form, Inductor would
    # compute the product exactly, and that does not fit into 64 bits.
    x = state + ~number * -WEYL
    x = torch.bitwise_xor(x, _shifted(x, 30)) * FIRST
    x = torch.bitwise_xor(x, _shifted(x, 27)) * SECOND
    return torch.bitwise_xor(x, _shifted(x, 31))


def _shifted(x: Tensor, by: int) -> Tensor:
    """``x >> by`` as if x were unsigned."""
    return torch.bitwise_and(x >> by, 2 ** (64 - by) - 1)
