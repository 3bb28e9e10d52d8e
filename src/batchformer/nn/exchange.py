"""Rows of a batch between the ranks of a process group; without one, there is one rank.

The group is that of all ranks unless another is named.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.autograd.function import once_differentiable

from batchformer.nn.collectives import add_up_, add_up_and_deal, from_all
from batchformer.nn.ranks import rank, ranks
from batchformer.nn.uncompiled import uncompiled


def row_counts(x: Tensor, group: Any = None) -> list[int]:
    """How many rows every rank has; they are read back from the device if there are several.

    >>> row_counts(torch.zeros(3, 2))
    [3]
    """
    if ranks(group) == 1:
        return [len(x)]
    own = torch.tensor([len(x)], device=x.device)
    counts: list[int] = torch.cat(from_all(own, ranks(group), group)).tolist()
    return counts


def own_rows(counts: Sequence[int], group: Any = None) -> slice:
    """Where the rows of this rank are among those of all.

    >>> own_rows([3])
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
    if ranks(group) == 1:
        return x.detach()
    counts = row_counts(x, group) if counts is None else counts
    found = from_all(_filled(x, max(counts)), ranks(group), group)
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
    if ranks(group) == 1:
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
    if ranks(group) > 1:
        add_up_(found, group)
    return found


def _filled(x: Tensor, rows: int) -> Tensor:
    """Collectives need parts of one size: shorter ones are filled up, and cut afterwards."""
    filled = x.new_zeros(rows, *x.shape[1:])
    filled[: len(x)] = x
    return filled


def summed(x: Tensor, group: Any = None) -> Tensor:
    """The sum over several ranks, a new tensor."""
    total = x.clone(memory_format=torch.contiguous_format)
    add_up_(total, group)
    return total


def _scatters(x: Tensor, group: Any = None) -> bool:
    """Whether the backend sums and deals in one go; gloo does not in every version."""
    return x.is_cuda and "nccl" in dist.get_backend(group)


def _summed_own_rows(x: Tensor, counts: Sequence[int], group: Any = None) -> Tensor:
    """The sum over ranks of (M, ...), of which each rank keeps its own rows (N, ...)."""
    if not _scatters(x, group):
        return summed(x, group)[own_rows(counts, group)]
    parts = [_filled(part, max(counts)) for part in torch.split(x, list(counts))]
    return add_up_and_deal(parts, group)[: counts[rank(group)]]
