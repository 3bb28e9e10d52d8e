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
def follow(follower: nn.Module, leader: nn.Module, momentum: float | Tensor) -> None:
    """Move every parameter to ``momentum * own + (1 - momentum) * leader's``.

    Buffers are left alone: the follower's normalisation has statistics of its own, as in MoCo.

    Args:
        follower: changed in place.
        leader: with the same parameters.
        momentum: a number, or a tensor () on their device, from which a recorded update reads it.
    """
    own: list[Tensor] = list(follower.parameters())
    towards: list[Tensor] = list(leader.parameters())
    if not own:
        return
    if isinstance(momentum, Tensor):
        steps = torch._foreach_sub(towards, own)
        torch._foreach_mul_(steps, 1 - momentum)
        torch._foreach_add_(own, steps)
    else:
        torch._foreach_lerp_(own, towards, 1 - momentum)
