"""What ranks tell one another before their samples attend: how many there are, and a seed."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from batchformer.nn.collectives import from_all
from batchformer.nn.exchange import own_rows
from batchformer.nn.ranks import ranks
from batchformer.nn.uncompiled import uncompiled


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
def meet(
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
    if ranks(group) == 1:
        return AllRows([rows], slice(0, rows), seed[0], group)
    own = torch.cat((torch.tensor([rows, positions]).to(device), seed))
    found = torch.stack(from_all(own, ranks(group), group))
    counts, shapes = (list(column) for column in zip(*found[:, :2].tolist(), strict=True))
    if len(set(shapes)) > 1:
        raise ValueError(
            f"exchange: the ranks have {shapes} positions (tokens, pixels) for each sample, but "
            f"samples of all ranks can only attend to one another at the same positions. Pad or "
            f"crop all to one size, or train with exchange=False."
        )
    return AllRows(counts, own_rows(counts, group), found[0, 2], group)
