"""A second encoder that follows the first one slowly."""

from __future__ import annotations

import copy
from typing import TypeVar

import torch
from torch import Tensor, nn

M = TypeVar("M", bound=nn.Module)


def follower(leader: M) -> M:
    """A copy of a module that gradients do not reach."""
    return copy.deepcopy(leader).requires_grad_(False)


@torch.no_grad()
def follow(follower: nn.Module, leader: nn.Module, momentum: float) -> None:
    """Move every parameter to ``momentum * own + (1 - momentum) * leader's``.

    Buffers are left alone: the follower's normalisation has statistics of its own, as in MoCo.
    """
    own: list[Tensor] = list(follower.parameters())
    torch._foreach_lerp_(own, list(leader.parameters()), 1 - momentum)
