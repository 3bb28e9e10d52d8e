"""AutoAugment over whole batches of uint8 images.

One of 25 sub-policies is drawn for each sample; each of its two operations acts with its own
probability. Magnitudes are torchvision's, in bins of 10. Older implementations on PIL images differ
from them slightly, for instance solarizing from 256 instead of 255.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from batchformer.lab.data.transforms.contract import columns
from batchformer.lab.data.transforms.grouped import (
    ENHANCEMENTS,
    IDENTITY,
    OPERATIONS,
    apply_in_sequence,
)
from batchformer.lab.data.transforms.magnitudes import has_sign, magnitudes, parameters
from batchformer.lab.data.transforms.policies import POLICIES, PolicyName
from batchformer.lab.data.transforms.uniform import whole

BINS = 10


class _Table(NamedTuple):
    """A policy as tensors (2, 25), for images of one size."""

    code: Tensor
    probability: Tensor
    magnitude: Tensor
    signed: Tensor
    factor: Tensor


@lru_cache
def _table(policy: PolicyName, height: int, width: int) -> _Table:
    columns_ = list(zip(*POLICIES[policy], strict=True))
    bins = {name: magnitudes(name, height, width, BINS) for name in OPERATIONS}
    return _Table(
        torch.tensor([[OPERATIONS.index(name) for name, _, _ in c] for c in columns_]),
        torch.tensor([[p for _, p, _ in c] for c in columns_], dtype=torch.float64),
        torch.stack([torch.stack([bins[name][b] for name, _, b in c]) for c in columns_]),
        torch.tensor([[has_sign(name) for name, _, _ in c] for c in columns_]),
        torch.tensor([[name in ENHANCEMENTS for name, _, _ in c] for c in columns_]),
    )


def auto_augment(
    x: Tensor,
    sub_policy: Tensor,
    chance: Tensor,
    negative: Tensor,
    policy: PolicyName = "cifar10",
    fill: int = 128,
) -> Tensor:
    """Apply the drawn sub-policies to `x` (N, C, H, W) uint8.

    Args:
        x: (N, C, H, W) uint8.
        sub_policy: (N,) on the CPU, 0..24.
        chance: (2, N) on the CPU: an operation acts where this is below its probability.
        negative: (2, N) bool on the CPU: whether a magnitude that has a sign is negative.
        policy: "cifar10" or "imagenet".
        fill: value of pixels that a warp takes from outside the image.
    """
    # One row for each of the two operations, one column for each sample.
    drawn = _Table(*(part[:, sub_policy] for part in _table(policy, *x.shape[-2:])))
    code = drawn.code.where(chance < drawn.probability, IDENTITY)
    parameter = parameters(drawn.magnitude, negative, drawn.signed, drawn.factor)
    return apply_in_sequence(x, code, parameter, fill)


@dataclass(frozen=True)
class AutoAugment:
    """AutoAugment with the policy found on CIFAR-10 or on ImageNet."""

    policy: PolicyName = "cifar10"
    fill: int = 128
    draws: ClassVar[int] = 5

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise ValueError(f"policy must be one of {', '.join(POLICIES)}, got {self.policy!r}")

    def __call__(self, x: Tensor, u: Tensor) -> Tensor:
        sub_policy, *rest = columns(self, x, u)
        chance, sign = torch.stack(rest[:2]), torch.stack(rest[2:])
        sub_policy = whole(sub_policy, len(POLICIES[self.policy]))
        return auto_augment(x, sub_policy, chance, sign < 0.5, self.policy, self.fill)
