"""Parameters out of uniform numbers in [0, 1), on the CPU in float64."""

from __future__ import annotations

from torch import Tensor


def whole(u: Tensor, count: int | Tensor) -> Tensor:
    """Whole numbers 0..count - 1, all equally likely; `count` may differ by sample.

    >>> import torch
    >>> whole(torch.tensor([0.0, 0.3, 0.99], dtype=torch.float64), 4)
    tensor([0, 1, 3])
    """
    return (u * count).floor().long()


def between(u: Tensor, low: float, high: float) -> Tensor:
    """Numbers from `low` up to, but without, `high`, evenly spread."""
    return low + (high - low) * u
