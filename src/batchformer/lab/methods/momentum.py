"""What MoCo and PaCo share: a momentum encoder, a queue, shuffled batch normalisation.

Batch statistics that queries share with their keys, but not with the queue, could give the matching
keys away. MoCo and PaCo therefore shuffle the keys' images between GPUs. One device has the same
effect if it normalises a batch in parts, with the keys' images assigned to parts at random.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from batchformer.lab.config.training import require
from batchformer.lab.models.norms import interleave_rows, restore_rows
from batchformer.nn.exchange import gather, row_counts, rows_of_rank, world_size
from batchformer.nn.randomness import seed_for
from batchformer.torch_private import foreach_add_, foreach_lerp_, foreach_mul_, foreach_sub

M = TypeVar("M", bound=nn.Module)

#: Makes the shuffle differ from the other orders drawn from the seed of a run.
_SHUFFLE = 2


def frozen_copy(module: M) -> M:
    """A copy of a module whose parameters are not trained."""
    return copy.deepcopy(module).requires_grad_(False)


@torch.no_grad()
def update_average_(average: nn.Module, module: nn.Module, momentum: float | Tensor) -> None:
    """Move every parameter to ``momentum * own + (1 - momentum) * module's``, in place.

    Buffers do not change: the momentum encoder normalises by its own statistics, as in MoCo.

    Args:
        momentum: a number, or a tensor () on the device, which a captured update reads again.
    """
    own: list[Tensor] = list(average.parameters())
    towards: list[Tensor] = list(module.parameters())
    if not own:
        return
    if isinstance(momentum, Tensor):
        steps = foreach_sub(towards, own)
        foreach_mul_(steps, 1 - momentum)
        foreach_add_(own, steps)
    else:
        foreach_lerp_(own, towards, 1 - momentum)


class KeyQueue(nn.Module):
    """A ring of the newest keys (Q, D) and their labels (Q,); it starts empty.

    The position is a tensor too, so that a captured update moves on when it is replayed.

    >>> queue = KeyQueue(size=3, dim=1)
    >>> queue.push(torch.tensor([[1.0], [2.0]]), torch.tensor([5, 6]))
    >>> queue.valid.tolist()
    [True, True, False]
    >>> queue.push(torch.tensor([[3.0], [4.0]]), torch.tensor([7, 8]))
    >>> queue.keys.flatten(), queue.labels
    (tensor([4., 2., 3.]), tensor([8, 6, 7]))
    >>> queue.push(torch.arange(4.0)[:, None], torch.arange(4))
    >>> queue.keys.flatten(), queue.labels
    (tensor([3., 1., 2.]), tensor([3, 1, 2]))
    """

    keys: Tensor
    labels: Tensor
    valid: Tensor
    position: Tensor

    def __init__(self, size: int, dim: int) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(size, dim))
        self.register_buffer("labels", torch.zeros(size, dtype=torch.int64))
        self.register_buffer("valid", torch.zeros(size, dtype=torch.bool))
        self.register_buffer("position", torch.zeros((), dtype=torch.int64))

    @torch.no_grad()
    def push(self, keys: Tensor, labels: Tensor) -> None:
        """Add keys (N, D) with labels (N,); of more than Q keys, only the last Q."""
        size = len(self.keys)
        keys, labels = keys[-size:].to(self.keys.dtype), labels[-size:]
        where = (self.position + torch.arange(len(keys), device=keys.device)) % size
        self.keys.index_copy_(0, where, keys)
        self.labels.index_copy_(0, where, labels)
        self.valid.index_fill_(0, where, True)
        self.position.copy_((self.position + len(keys)) % size)


class Shuffled(NamedTuple):
    """What is needed to undo a shuffle: the order of all rows, and the row count of every rank."""

    order: Tensor
    counts: list[int]


@torch.no_grad()
def shuffle(x: Tensor, seed: int) -> tuple[Tensor, Shuffled]:
    """Redistribute the rows of all ranks at random; each rank keeps its number of rows.

    Batch statistics are then not those of the samples that a rank compares. The order depends on
    the seed alone, so no rank sends it. There is no gradient.

    Args:
        x: (N, ...); N may differ between ranks.
        seed: the same on every rank.
    """
    counts = row_counts(x)
    draw = torch.Generator().manual_seed(seed)
    order = torch.randperm(sum(counts), generator=draw).to(x.device)
    rows = gather(x, counts)[order[rows_of_rank(counts)]]
    return torch.empty_like(x).copy_(rows), Shuffled(order, counts)  # in the memory format of x


@torch.no_grad()
def unshuffle(rows: Tensor, shuffled: Shuffled) -> Tensor:
    """Undo :func:`shuffle`: the rows (N, ...) of this rank, in their original order."""
    order, counts = shuffled
    return gather(rows, counts)[order.argsort()[rows_of_rank(counts)]]


def parts_of_rank(parts: int) -> int:
    """The number of parts that each rank normalises, out of `parts` in all.

    >>> parts_of_rank(8)
    8
    """
    require(
        parts == 1 or parts % world_size() == 0,
        f"hyper.norm-parts {parts} cannot be divided among {world_size()} ranks: set a multiple of "
        f"{world_size()}, or 1, so that every rank normalises its own rows",
    )
    return max(1, parts // world_size())


def require_equal_parts(rows: int, parts: int) -> None:
    """Refuse a batch that cannot be divided into equal parts."""
    require(
        rows % parts == 0,
        f"a batch of {rows} rows cannot be divided into {parts} equal parts (hyper.norm-parts)",
    )


def encode_in_parts(
    encode: Callable[[Tensor], Tensor], x: Tensor, parts: int, streams: int = 1
) -> Tensor:
    """Encode ``x`` by a network that normalises in parts, which are contiguous rows of ``x``.

    Args:
        encode: rows to as many rows; ``normalise_in_parts`` has been applied to its network.
        x: (S * N, ...), S streams of N rows; part p has the rows p * N / P to (p + 1) * N / P of
            every stream.

    Returns:
        (S * N, ...) in the order of ``x``.
    """
    if parts == 1:
        return encode(x)
    require_equal_parts(len(x) // streams, parts)
    made = encode(torch.cat([interleave_rows(rows, parts) for rows in x.chunk(streams)]))
    return torch.cat([restore_rows(rows, parts) for rows in made.chunk(streams)])


def draw_order(x: Tensor, parts: int) -> Tensor | None:
    """An order (N,) that assigns rows to parts at random; None with one part or several ranks.

    Several ranks shuffle rows between them instead. The order is drawn on the device and not read
    back, so that a CUDA graph can capture the update.
    """
    if parts == 1 or world_size() > 1:
        return None
    require_equal_parts(len(x), parts)
    return torch.rand(len(x), device=x.device).argsort()


@torch.no_grad()
def encode_shuffled(
    encode: Callable[[Tensor], Tensor], x: Tensor, order: Tensor | None, seed: int, update: Tensor
) -> Tensor:
    """Encode images in shuffled order; return rows (S * N, D) in the order of ``x``.

    Several ranks shuffle images between them; one rank shuffles by ``order``.

    Args:
        encode: images (N, ...) to rows (S * N, D), one stream after the other.
        update: () number of updates so far, the same on every rank; each update has its own order.
    """
    restore: Callable[[Tensor], Tensor]
    if world_size() > 1:
        images, shuffled = shuffle(x, seed_for(seed, "order", int(update), _SHUFFLE))
        rows, restore = encode(images), partial(unshuffle, shuffled=shuffled)
    elif order is None:
        return encode(x)
    else:
        rows, restore = encode(x[order]), partial(torch.index_select, dim=0, index=order.argsort())
    return torch.cat([restore(stream) for stream in rows.chunk(len(rows) // len(x))])
