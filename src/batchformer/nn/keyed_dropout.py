"""Dropout as a function of (seed, layer, place, row, position, column), in operations of torch.

A row's mask depends on its number among the rows of all ranks, not on the rank that computes it.
The bits are those of a counter-based generator: the finaliser of SplitMix64 (Steele et al., 2014),
applied once for each of the coordinates.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

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
