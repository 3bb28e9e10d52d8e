"""Dropout as a function of (seed, row, column): the backward pass can draw the same mask again.

One call of Philox gives 128 bits, sixteen for each of eight elements of a tile. A probability is
therefore rounded to a multiple of 1/65536, and kept elements are divided by exactly the rounded
probability of being kept, so the expectation is unchanged.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

#: The number of values of sixteen random bits.
STEPS = 65536
#: Rows of a tile: the elements that one call of the generator serves.
ROWS = 8
#: Seven rounds pass the same test batteries as ten (Salmon et al., 2011).
ROUNDS = tl.constexpr(7)


@triton.jit
def keep_tile(seed, group, column, threshold):
    """Which elements of a tile ``(8, columns)`` are kept, for ``column`` ``(1, columns)``."""
    counter = column.to(tl.uint32)
    none = counter * 0
    a, b, c, d = tl.philox(seed, counter, none + tl.cast(group, tl.uint32), none, none, ROUNDS)
    row = tl.arange(0, 8)[:, None]
    word = tl.where(row < 4, tl.where(row < 2, a, b), tl.where(row < 6, c, d))
    bits = tl.where(row % 2 == 0, word & 0xFFFF, word >> 16)
    return bits.to(tl.int32) >= threshold


def draw_seeds(count: int, device: torch.device) -> Tensor:
    """Seeds from torch's generator of the device; replays of a CUDA graph draw new ones."""
    return torch.randint(2**62, (count,), device=device)


def threshold_and_scale(probability: float) -> tuple[int, float]:
    """Elements whose bits are below the first number are dropped; the second scales the others.

    >>> threshold_and_scale(0.5)
    (32768, 2.0)
    """
    threshold = round(probability * STEPS)
    return threshold, 0.0 if threshold == STEPS else STEPS / (STEPS - threshold)
