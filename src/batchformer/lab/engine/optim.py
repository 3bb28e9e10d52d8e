"""Optimizers, LARS among them, and learning rates, from their configurations."""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from batchformer.lab.config.training import OptimConfig, ScheduleConfig
from batchformer.plug.attach import MODULE
from batchformer.torch_private import (
    foreach_add,
    foreach_add_,
    foreach_mul,
    foreach_mul_,
    foreach_norm,
    foreach_sub_,
)


class Lars(Optimizer):
    """LARS (You et al., 2017) as MoCo-v3 uses it: SGD with steps scaled to the parameter's norm.

    For a parameter p with gradient g: ``d = g + weight_decay p``; if `adapted` and neither norm is
    zero, ``d`` is multiplied by ``trust |p| / |d|``; then ``m = momentum m + d`` and
    ``p = p - lr m``. A CUDA graph can capture a step: rates may be tensors, and nothing is read
    back from the device.

    Args:
        params: parameters or groups; a group may override every setting.
        weight_decay: added to the gradient before its norm is taken.
        adapted: False gives plain SGD, for biases and normalisation parameters.
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
            changes = list(foreach_add(changes, params, alpha=group["weight_decay"]))
        if group["adapted"]:
            ratios = trust_ratios(params, changes, group["trust"])
            changes = list(foreach_mul(changes, ratios))
        moments = [self._moment(p) for p in params]
        foreach_mul_(moments, group["momentum"])
        foreach_add_(moments, changes)
        foreach_sub_(params, foreach_mul(moments, group["lr"]))

    def _moment(self, parameter: Tensor) -> Tensor:
        state = self.state[parameter]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        moment: Tensor = state["momentum_buffer"]
        return moment


def trust_ratios(params: list[Tensor], changes: list[Tensor], trust: float) -> list[Tensor]:
    """``trust |p| / |d|`` of each parameter and its change, or 1 if either norm is zero.

    >>> params = [torch.tensor([3.0, 4.0]), torch.zeros(2)]
    >>> trust_ratios(params, [torch.tensor([0.6, 0.8]), torch.ones(2)], trust=0.1)
    [tensor(0.5000), tensor(1.)]
    """
    own, new = (torch.stack(foreach_norm(tensors)) for tensors in (params, changes))
    return list(torch.where((own > 0) & (new > 0), trust * own / new, 1.0).unbind())


def build_optimizer(groups: list[dict[str, Any]], config: OptimConfig) -> Optimizer:
    """The optimizer of a configuration over parameter groups.

    Each group keeps its learning rate as ``base_lr``, which :func:`set_lr` scales. On a GPU the
    rates are tensors and each step is one kernel, so that a CUDA graph can capture it.
    """
    groups = [{**group, "params": list(group["params"])} for group in groups]
    if config.module_weight_decay is not None:
        own = {"weight_decay": config.module_weight_decay}
        groups = [group | own if group.get("name") == MODULE else group for group in groups]
    if config.decayed == "matrices":
        groups = [part for group in groups for part in _by_dimensions(group, config)]
    devices = {p.device for group in groups for p in group["params"]}
    on_gpu = {device.type for device in devices} == {"cuda"}
    for group in groups:
        rate = group["base_lr"] = group.get("lr", config.lr)
        group["lr"] = torch.tensor(rate, device=next(iter(devices))) if on_gpu else rate
    if config.name == "sgd":
        return torch.optim.SGD(
            groups,
            lr=config.lr,
            momentum=config.momentum,
            nesterov=config.nesterov,
            weight_decay=config.weight_decay,
            fused=on_gpu or None,
        )
    if config.name == "lars":
        return Lars(
            groups,
            lr=config.lr,
            momentum=config.momentum,
            weight_decay=config.weight_decay,
            trust=config.trust,
        )
    kind = torch.optim.Adam if config.name == "adam" else torch.optim.AdamW
    return kind(
        groups,
        lr=config.lr,
        betas=config.betas,
        weight_decay=config.weight_decay,
        fused=on_gpu or None,
        capturable=on_gpu,
    )


def _by_dimensions(group: dict[str, Any], config: OptimConfig) -> list[dict[str, Any]]:
    """Split a group: its matrices, and the rest, which is neither decayed nor adapted by LARS."""
    spared = {"weight_decay": 0.0} | ({"adapted": False} if config.name == "lars" else {})
    matrices = [p for p in group["params"] if p.ndim > 1]
    others = [p for p in group["params"] if p.ndim <= 1]
    parts = [{**group, "params": matrices}, {**group, **spared, "params": others}]
    return [part for part in parts if part["params"]]


def lr_factor(config: ScheduleConfig, update: int, updates: int, per_epoch: int) -> float:
    """The learning rate of one update as a multiple of the configured one.

    A pure function of time: a resumed run needs no scheduler state.

    >>> cosine = ScheduleConfig(kind="cosine", warmup=2, warmup_from=0.5)
    >>> [round(lr_factor(cosine, t, 6, 1), 2) for t in range(6)]
    [0.5, 0.75, 1.0, 0.85, 0.5, 0.15]
    """
    length = per_epoch if config.per == "epoch" else 1
    if update >= config.restart:  # the rest is a schedule of its own
        update, updates = update - config.restart, updates - config.restart
    now = update // length + config.ahead
    end = math.ceil(updates / length)
    over = config.warmup_overshoot
    # The rate is 1 at the end of the warm-up, and above 1 in the overshoot.
    if now < config.warmup + (over + 1 if over else 0):
        return config.warmup_from + (1 - config.warmup_from) * now / config.warmup
    if config.kind == "cosine":
        # min: a schedule that ended keeps its last value; max: the warm-up may fill the run.
        done = (now - config.warmup) / max(end - config.warmup, 1)
        share = 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))
        return config.floor + (1 - config.floor) * share
    if config.kind == "multistep":
        return config.gamma ** bisect.bisect_right(config.milestones, now)
    if config.kind == "power":
        return float((1 + config.rate * (now - config.warmup)) ** -config.power)
    return 1.0


def parameters_of(optimizer: Optimizer) -> list[nn.Parameter]:
    """All parameters that an optimizer steps."""
    return [p for group in optimizer.param_groups for p in group["params"]]


def reset_state(optimizer: Optimizer) -> None:
    """Set moments and counters to zero in place, because captured graphs write to these tensors.

    The next step equals that of a new optimizer, for SGD and for Adam.
    """
    for moments in optimizer.state.values():
        for value in moments.values():
            if isinstance(value, torch.Tensor):
                value.zero_()


def set_lr(optimizer: Optimizer, factor: float) -> None:
    """Set every group's learning rate to `factor` times its base rate."""
    for group in optimizer.param_groups:
        rate = group["base_lr"] * factor
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(rate)  # a captured graph reads the rate from this tensor
        else:
            group["lr"] = rate


def optimizer_state(optimizer: Optimizer) -> dict[str, Any]:
    """The optimizer's state with learning rates as numbers, to be loaded on any device."""
    state = optimizer.state_dict()
    state["param_groups"] = [{**g, "lr": float(g["lr"])} for g in state["param_groups"]]
    return state


def load_optimizer_state(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Load moments and rates; settings that belong to the device (fused, capturable) stay."""
    own = [{k: group.get(k) for k in _OF_THE_DEVICE} for group in optimizer.param_groups]
    optimizer.load_state_dict(state)
    for group, kept in zip(optimizer.param_groups, own, strict=True):
        rate = group["lr"]
        group.update({k: v for k, v in kept.items() if k in group})
        if isinstance(kept["lr"], torch.Tensor):
            kept["lr"].fill_(rate)
        else:
            group["lr"] = rate


#: Settings of a parameter group that depend on the device, not on the training.
_OF_THE_DEVICE = ("lr", "fused", "foreach", "capturable")
