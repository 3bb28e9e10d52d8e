"""Shuffled batch normalisation: a key is normalised with other samples than its query.

Statistics that a batch of queries shares with its keys, and not with the queue, could give the
matching keys away. MoCo and PaCo therefore shuffle the keys' images between GPUs. One device does
the same by normalising a batch in parts.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from batchformer.lab.config.training import require
from batchformer.lab.methods.shuffle import shuffle, unshuffle
from batchformer.lab.models.norms import collect, deal
from batchformer.nn.exchange import ranks
from batchformer.nn.randomness import seed_for

#: Makes this order differ from the other orders that are drawn from the seed of a run.
_SHUFFLE = 2


def parts_of_rank(parts: int) -> int:
    """The parts of a batch that each rank normalises, of so many in all.

    >>> parts_of_rank(8)
    8
    """
    require(
        parts == 1 or parts % ranks() == 0,
        f"hyper.norm-parts {parts} cannot be divided among {ranks()} ranks: set a multiple of "
        f"{ranks()}, or 1, with which every rank normalises its own rows",
    )
    return max(1, parts // ranks())


def require_equal_parts(rows: int, parts: int) -> None:
    """Refuse a batch whose rows cannot be divided into parts of one size."""
    require(
        rows % parts == 0,
        f"a batch of {rows} rows has no {parts} parts of one size (hyper.norm-parts)",
    )


def in_parts(encode: Callable[[Tensor], Tensor], x: Tensor, parts: int, streams: int = 1) -> Tensor:
    """What a network with normalisation in parts makes of ``x``, where the parts are contiguous.

    Args:
        encode: rows to as many rows; its normalisation has gone through ``normalise_in_parts``.
        x: (S * N, ...), S streams of N rows; part p has the rows p * N / P to (p + 1) * N / P of
            every stream.
        parts: P.
        streams: S.

    Returns:
        (S * N, ...) in the order of ``x``.
    """
    if parts == 1:
        return encode(x)
    require_equal_parts(len(x) // streams, parts)
    made = encode(torch.cat([deal(rows, parts) for rows in x.chunk(streams)]))
    return torch.cat([collect(rows, parts) for rows in made.chunk(streams)])


def draw_order(x: Tensor, parts: int) -> Tensor | None:
    """An order (N,) that assigns rows to parts at random; None with one part or several ranks.

    Several ranks shuffle rows between them instead. The order is drawn on the device and nothing is
    read back from it, so that a CUDA graph can capture the update.
    """
    if parts == 1 or ranks() > 1:
        return None
    require_equal_parts(len(x), parts)
    return torch.rand(len(x), device=x.device).argsort()


@torch.no_grad()
def encode_shuffled(
    encode: Callable[[Tensor], Tensor], x: Tensor, order: Tensor | None, seed: int, update: Tensor
) -> Tensor:
    """Rows (S * N, D) that ``encode`` makes of shuffled images, in the order of ``x`` again.

    Several ranks shuffle images between them; one rank shuffles by ``order``.

    Args:
        encode: images (N, ...) to rows (S * N, D), one stream after the other.
        x: images (N, ...).
        order: of :func:`draw_order`.
        seed: of the run.
        update: () the number of updates so far, on every rank the same; each has its own order.
    """
    # On one rank the order is not needed, and must not be read from the device.
    drawn = seed_for(seed, "order", int(update), _SHUFFLE) if ranks() > 1 else 0
    images, shuffled = shuffle(x, drawn)
    rows = encode(images if order is None else images[order])
    if order is None and shuffled is None:
        return rows
    streams = rows.chunk(len(rows) // len(x))
    if order is not None:
        back = order.argsort()
        return torch.cat([stream[back] for stream in streams])
    return torch.cat([unshuffle(stream, shuffled) for stream in streams])
