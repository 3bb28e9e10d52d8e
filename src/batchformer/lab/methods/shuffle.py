"""The rows of all ranks dealt anew, so that a batch's statistics do not tell whose they are."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from batchformer.nn.exchange import gather, own_rows, ranks, row_counts


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
