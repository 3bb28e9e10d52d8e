"""Images of all kinds and the uniform numbers that transforms of them are given."""

from __future__ import annotations

import torch
from torch import Tensor


def images(n: int, channels: int = 3, height: int = 32, width: int = 32, seed: int = 0) -> Tensor:
    """Noise, smooth ramps of low contrast, few-valued and constant images, in turn."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randint(256, (n, channels, height, width), generator=g, dtype=torch.uint8)
    ramp = torch.arange(height * width).view(height, width) * 150 // (height * width) + 40
    x[1::4] = (ramp + torch.randint(30, x[1::4].shape, generator=g)).to(torch.uint8)
    x[2::4] = (x[2::4] > 128).to(torch.uint8) * 60 + 7
    x[3::4] = x[3::4, :, :1, :1]
    return x


def numbers(n: int, draws: int, seed: int = 0) -> Tensor:
    """Uniform numbers as a feed draws them."""
    g = torch.Generator().manual_seed(seed)
    return torch.rand(n, draws, dtype=torch.float64, generator=g)
