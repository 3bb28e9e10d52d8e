"""LARS (You et al., 2017) as MoCo-v3 uses it, and as a CUDA graph can hold it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


class Lars(Optimizer):
    """SGD with momentum whose steps are in proportion to the length of what they change.

    For a parameter p with gradient g: ``d = g + weight_decay p``; where it is adapted and neither
    length is zero, ``d`` is multiplied by ``trust |p| / |d|``; then ``m = momentum m + d`` and
    ``p = p - lr m``. Rates may be tensors, and nothing is read back from the device.

    Args:
        params: parameters or groups; a group may have every setting of its own.
        lr: learning rate.
        momentum: share of m that is kept.
        weight_decay: in the gradient, and so in the length that it is compared with.
        trust: the trust coefficient.
        adapted: off: plain SGD, for biases and scales of normalisation.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust: float = 0.001,
        adapted: bool = True,
    ) -> None:
        settings = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__(params, {**settings, "trust": trust, "adapted": adapted})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One update of every parameter that has a gradient."""
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if params:
                self._update(params, group)

    def _update(self, params: list[Tensor], group: dict[str, Any]) -> None:
        changes = [p.grad for p in params if p.grad is not None]
        if group["weight_decay"]:
            changes = list(torch._foreach_add(changes, params, alpha=group["weight_decay"]))
        if group["adapted"]:
            ratios = trust_ratios(params, changes, group["trust"])
            changes = list(torch._foreach_mul(changes, ratios))
        moments = [self._moment(p) for p in params]
        torch._foreach_mul_(moments, group["momentum"])
        torch._foreach_add_(moments, changes)
        torch._foreach_sub_(params, torch._foreach_mul(moments, group["lr"]))

    def _moment(self, parameter: Tensor) -> Tensor:
        state = self.state[parameter]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        moment: Tensor = state["momentum_buffer"]
        return moment


def trust_ratios(params: list[Tensor], changes: list[Tensor], trust: float) -> list[Tensor]:
    """``trust |p| / |d|`` of each parameter and its change, or 1 where a length is zero.

    >>> params = [torch.tensor([3.0, 4.0]), torch.zeros(2)]
    >>> trust_ratios(params, [torch.tensor([0.6, 0.8]), torch.ones(2)], trust=0.1)
    [tensor(0.5000), tensor(1.)]
    """
    own, new = (torch.stack(torch._foreach_norm(tensors)) for tensors in (params, changes))
    return list(torch.where((own > 0) & (new > 0), trust * own / new, 1.0).unbind())
