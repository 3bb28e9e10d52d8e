"""The collectives themselves, here and nowhere else: their names in torch keep changing.

All are called by every rank of a group, with tensors of one shape and type, and change them in
place. A group is that of all ranks unless another is named.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist


def from_all(x: Tensor, ranks: int, group: Any = None) -> list[Tensor]:
    """What each of so many ranks has here."""
    found = [torch.empty_like(x) for _ in range(ranks)]
    dist.all_gather(found, x, group=group)
    return found


def add_up_(x: Tensor, group: Any = None) -> None:
    """The sum over ranks."""
    dist.all_reduce(x, group=group)


def add_up_and_deal(parts: Sequence[Tensor], group: Any = None) -> Tensor:
    """Of the sum over ranks of one part for each, that of this one; not with every backend."""
    own = torch.empty_like(parts[0])
    dist.reduce_scatter(own, list(parts), group=group)
    return own


def largest_(x: Tensor, group: Any = None) -> None:
    """The largest of every number over ranks."""
    dist.all_reduce(x, op=dist.ReduceOp.MAX, group=group)


def from_first_(x: Tensor, group: Any = None) -> None:
    """What rank 0 has."""
    dist.broadcast(x, src=0, group=group)
