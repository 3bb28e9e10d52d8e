"""How many bytes ranks exchange so that their samples can attend to one another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


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
