"""Transforms in sequence, as one transform."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from batchformer.lab.data.transforms.contract import Transform, columns


@dataclass(frozen=True)
class Compose:
    """Transforms one after the other; each is given its own columns of the uniform numbers.

    >>> from batchformer.lab.data.transforms import RandomCrop, RandomFlip
    >>> Compose((RandomCrop(), RandomFlip())).draws
    3
    """

    transforms: tuple[Transform, ...]

    @property
    def draws(self) -> int:
        return sum(transform.draws for transform in self.transforms)

    def __call__(self, x: Tensor, u: Tensor | None = None) -> Tensor:
        """`u` may be left out where nothing is random."""
        if u is None:
            u = torch.empty(len(x), 0, dtype=torch.float64)
        columns(self, x, u)
        for transform in self.transforms:
            own, u = u[:, : transform.draws], u[:, transform.draws :]
            x = transform(x, own)
        return x
