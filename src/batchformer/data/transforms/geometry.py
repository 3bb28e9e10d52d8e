"""Random crop and horizontal flip of whole batches, any dtype."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


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
    rows = top.to(x.device, non_blocking=True)[:, None] + torch.arange(height, device=x.device)
    columns = left.to(x.device, non_blocking=True)[:, None] + torch.arange(width, device=x.device)
    source = rows[:, :, None] * padded.shape[-1] + columns[:, None, :]
    source = source.view(n, 1, -1).expand(-1, channels, -1)
    return padded.flatten(2).gather(2, source).view_as(x)


def flip_where(x: Tensor, chosen: Tensor) -> Tensor:
    """Mirror left and right the samples where `chosen` (N,) is true; x is (N, C, H, W)."""
    chosen = chosen.to(x.device, non_blocking=True).view(-1, 1, 1, 1)
    return torch.where(chosen, x.flip(-1), x)


@dataclass(frozen=True)
class RandomCrop:
    """Shift each sample by at most `padding` pixels, filling with zeros."""

    padding: int = 4

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        top, left = torch.randint(2 * self.padding + 1, (2, len(x)), generator=generator)
        return crop_padded(x, top, left, self.padding)


@dataclass(frozen=True)
class RandomFlip:
    """Mirror each sample left and right with probability `p`."""

    p: float = 0.5

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        return flip_where(x, torch.rand(len(x), generator=generator) < self.p)
