"""Test images: normalised for a network, and as thumbnails for people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from batchformer.insight.classes import Classes


class LabelledImages(Protocol):
    """M labelled test images."""

    @property
    def classes(self) -> Classes: ...

    @property
    def labels(self) -> Tensor:
        """(M,) int64 on the CPU."""

    def batches(self, rows: Tensor, size: int) -> Iterator[Any]:
        """Yield the network's inputs for these rows, on the device and ``size`` at a time, such as
        normalised images (N, channels, H, W)."""

    def thumbnails(self, rows: Tensor, side: int) -> Tensor:
        """(n, h, w, 3) uint8 on the CPU, at most `side` high and wide."""


def thumbnails(images: Tensor, side: int) -> Tensor:
    """Thumbnails (n, h, w, 3) uint8 of images (n, 1 or 3, H, W) uint8.

    Images larger than ``side`` are reduced by area interpolation; none is enlarged.

    >>> thumbnails(torch.zeros(2, 1, 100, 50, dtype=torch.uint8), side=10).shape
    torch.Size([2, 10, 5, 3])
    """
    height, width = images.shape[-2:]
    if max(height, width) > side:
        scale = side / max(height, width)
        size = [max(1, round(length * scale)) for length in (height, width)]
        images = F.interpolate(images.float(), size, mode="area").round().to(torch.uint8)
    return images.expand(-1, 3, -1, -1).permute(0, 2, 3, 1).contiguous()


def stretched_thumbnails(images: Tensor, side: int) -> Tensor:
    """Thumbnails of float images (n, channels, H, W), stretched from darkest to brightest value.

    With two channels only the first is shown, with more than three the first three.

    >>> stretched_thumbnails(torch.tensor([0.0, 2.0, 1.0, 4.0]).view(1, 4, 1, 1), side=9).tolist()
    [[[[0, 128, 64]]]]
    """
    images = images.detach().cpu().float()
    low, high = images.min(), images.max()
    stretched = ((images - low) / (high - low).clamp_min(1e-12) * 255).round().to(torch.uint8)
    return thumbnails(stretched[:, : 3 if stretched.shape[1] > 2 else 1], side)
