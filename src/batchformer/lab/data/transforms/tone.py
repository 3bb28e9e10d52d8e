"""Grey and solarized versions of some samples of a uint8 batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from batchformer.lab.data.transforms import ops
from batchformer.lab.data.transforms.contract import columns, require_uint8
from batchformer.lab.data.transforms.grouped import apply_where


@dataclass(frozen=True)
class RandomGrey:
    """Make all channels of a sample equal to its luma with probability `p`.

    Within one grey level of torchvision, whose floating-point luma is truncated.
    """

    p: float = 0.1
    draws: ClassVar[int] = 1

    def __call__(self, x: Tensor, u: Tensor) -> Tensor:
        require_uint8("RandomGrey", x)
        (chance,) = columns(self, x, u)
        return apply_where(x, chance < self.p, ops.grey)


@dataclass(frozen=True)
class RandomSolarize:
    """Invert the values of a sample at or above `threshold` with probability `p`."""

    threshold: int = 128
    p: float = 0.5
    draws: ClassVar[int] = 1

    def __call__(self, x: Tensor, u: Tensor) -> Tensor:
        require_uint8("RandomSolarize", x)
        (chance,) = columns(self, x, u)
        threshold = torch.tensor(float(self.threshold)).expand(len(x))
        return apply_where(x, chance < self.p, ops.solarize, threshold)
