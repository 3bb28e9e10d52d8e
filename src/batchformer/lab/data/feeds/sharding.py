"""Shard batches over ranks: each rank has a part of every block; no row is padded or dropped.

The batch of a step is the same for every number of ranks. A rank takes a contiguous part of each
block of the batch (a domain, or an accumulated part). Parts differ by at most one row, and earlier
ranks have the larger ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from batchformer.lab.data.feeds.order import Order
from batchformer.nn.exchange import gather, rank, rows_of_rank, world_size


def part_sizes(rows: int) -> list[int]:
    """How many of `rows` rows each rank has.

    >>> part_sizes(5)
    [5]
    """
    least, more = divmod(rows, world_size())
    return [least + (number < more) for number in range(world_size())]


def block_sizes(rows: int, blocks: int) -> list[int]:
    """Sizes of the blocks of a batch, as ``Tensor.chunk`` cuts it.

    >>> block_sizes(7, 3), block_sizes(6, 3)
    ([3, 3, 1], [2, 2, 2])
    """
    return [len(block) for block in torch.arange(rows).chunk(blocks)]


def own_positions(sizes: Sequence[int]) -> Tensor:
    """Positions of this rank's rows in a batch of blocks of these sizes.

    >>> own_positions([2, 3])
    tensor([0, 1, 2, 3, 4])
    """
    starts = [0, *torch.tensor(sizes).cumsum(0).tolist()]
    blocks = zip(starts, (rows_of_rank(part_sizes(size)) for size in sizes), strict=False)
    return torch.cat([torch.arange(start + own.start, start + own.stop) for start, own in blocks])


def require_rows(batches: Sequence[int], blocks: int = 1) -> None:
    """Refuse batches in which a rank would have no row of some block."""
    for rows in batches:
        if min(block_sizes(rows, blocks)) < world_size():
            cut = f", cut into {blocks} blocks," if blocks > 1 else ""
            raise ValueError(
                f"A batch of {rows} samples{cut} cannot be split over {world_size()} ranks so "
                "that each has one: leave out the last, smaller batch of an epoch "
                "(train.drop-last), set a larger train.batch-size (or a smaller train.accumulate), "
                "or start fewer ranks."
            )


class Share:
    """This rank's part of every step; all of it if there is one rank.

    A step that would leave a rank without a sample is refused. If the gradient is accumulated over
    several parts of a step, a rank has its share of each.
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
        sizes = block_sizes(samples, self.blocks)
        return {"parts": tuple(part_sizes(size)[rank()] for size in sizes)}


def scored_rows(rows: int) -> slice:
    """This rank's rows of a batch that is scored; at least one row.

    A rank without rows predicts the first row, and :func:`all_rows` leaves that out: networks need
    not handle empty batches, and with sharded weights every rank has to take part.
    """
    own = rows_of_rank(part_sizes(rows))
    return own if own.stop > own.start else slice(0, 1)


def all_rows(own: Tensor, rows: int) -> Tensor:
    """Gather the results of all ranks for their :func:`scored_rows`, (rows, ...) in order.

    Every rank has to call it.
    """
    if world_size() == 1:
        return own
    sizes = part_sizes(rows)
    return gather(own[: sizes[rank()]], sizes)
