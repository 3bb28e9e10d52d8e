"""Random crop and horizontal flip of whole batches, any dtype."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from batchformer.lab.data.transforms.contract import columns, send
from batchformer.lab.data.transforms.uniform import whole


def crop_padded(x: Tensor, top: Tensor, left: Tensor, padding: int) -> Tensor:
    """Windows of the input's own size out of the images padded with zeros.

    Args:
        x: (N, C, H, W).
        top: (N,) first row of each window in the padded image, 0..2 * padding.
        left: (N,) first column of each window.
        padding: rows and columns of zeros on each side.
    """
    n, channels, height, width = x.shape
    padded = F.pad(x, (padding,) * 4)
    rows = send(top, x.device)[:, None] + torch.arange(height, device=x.device)
    across = send(left, x.device)[:, None] + torch.arange(width, device=x.device)
    source = rows[:, :, None] * padded.shape[-1] + across[:, None, :]
    source = source.flatten(1)[:, None].expand(-1, channels, -1)
    return padded.flatten(2).gather(2, source).view(n, channels, height, width)


def flip_where(x: Tensor, chosen: Tensor) -> Tensor:
    """Mirror left and right the samples where `chosen` (N,) is true; x is (N, C, H, W)."""
    return torch.where(send(chosen, x.device).view(-1, 1, 1, 1), x.flip(-1), x)


@dataclass(frozen=True)
class RandomCrop:
    """Shift each sample by at most `padding` pixels, filling with zeros."""

    padding: int = 4
    draws: ClassVar[int] = 2

    def __call__(self, x: Tensor, u: Tensor) -> Tensor:
        top, left = (whole(column, 2 * self.padding + 1) for column in columns(self, x, u))
        return crop_padded(x, top, left, self.padding)


@dataclass(frozen=True)
class RandomFlip:
    """Mirror each sample left and right with probability `p`."""

    p: float = 0.5
    draws: ClassVar[int] = 1

    def __call__(self, x: Tensor, u: Tensor) -> Tensor:
        (chance,) = columns(self, x, u)
        return flip_where(x, chance < self.p)
