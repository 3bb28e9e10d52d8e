"""Cutout: one square hole per sample, over whole batches, any dtype."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from batchformer.lab.data.transforms.contract import columns, send
from batchformer.lab.data.transforms.uniform import whole


def cutout(x: Tensor, row: Tensor, column: Tensor, side: int) -> Tensor:
    """Set to zero the pixels within `side // 2` before, or less than that after, the centre.

    The centre lies inside the image and the hole is clipped at the borders, so that a hole near a
    border is smaller.

    Args:
        x: (N, C, H, W).
        row: (N,) row of each centre.
        column: (N,) column of each centre.
        side: side of the hole in pixels.
    """
    inside_rows = _hole(send(row, x.device), x.shape[-2], side)
    inside_columns = _hole(send(column, x.device), x.shape[-1], side)
    return x.masked_fill(inside_rows[:, None, :, None] & inside_columns[:, None, None, :], 0)


def _hole(centre: Tensor, length: int, side: int) -> Tensor:
    """(N, length) bool: whether a row, or a column, meets the hole."""
    offset = torch.arange(length, device=centre.device) - centre[:, None]
    return (offset >= -(side // 2)) & (offset < side // 2)


@dataclass(frozen=True)
class Cutout:
    """One square hole of zeros per sample, its centre uniform over the image.

    To be placed before normalisation. It may come before or after the change to float: 0 stays 0.
    """

    side: int = 16
    draws: ClassVar[int] = 2

    def __call__(self, x: Tensor, u: Tensor) -> Tensor:
        row, column = columns(self, x, u)
        return cutout(x, whole(row, x.shape[-2]), whole(column, x.shape[-1]), self.side)
