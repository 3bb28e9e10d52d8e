"""Optimizers and learning rates, from their configurations."""

from __future__ import annotations

import bisect
import math
from typing import Any

import torch
from torch.optim import Optimizer

from batchformer.engine.config import OptimConfig, ScheduleConfig


def build_optimizer(groups: list[dict[str, Any]], config: OptimConfig) -> Optimizer:
    """The optimizer of a configuration over parameter groups.

    Each group remembers its own learning rate as ``base_lr``; :func:`set_lr` scales from there.
    """
    for group in groups:
        group["base_lr"] = group.setdefault("lr", config.lr)
    if config.name == "sgd":
        return torch.optim.SGD(
            groups,
            lr=config.lr,
            momentum=config.momentum,
            nesterov=config.nesterov,
            weight_decay=config.weight_decay,
        )
    kind = torch.optim.Adam if config.name == "adam" else torch.optim.AdamW
    return kind(groups, lr=config.lr, betas=config.betas, weight_decay=config.weight_decay)


def lr_factor(config: ScheduleConfig, update: int, updates: int, per_epoch: int) -> float:
    """The learning rate of one update as a multiple of the configured one.

    A pure function of time: a resumed run needs no scheduler state.

    Args:
        update: index of the update, from 0.
        updates: updates in all.
        per_epoch: updates in an epoch.

    >>> cosine = ScheduleConfig(kind="cosine", warmup=2, warmup_from=0.5)
    >>> [round(lr_factor(cosine, t, 6, 1), 2) for t in range(6)]
    [0.5, 0.75, 1.0, 0.85, 0.5, 0.15]
    """
    length = per_epoch if config.per == "epoch" else 1
    now = update // length + config.ahead
    end = math.ceil(updates / length)
    if now < config.warmup:
        return config.warmup_from + (1 - config.warmup_from) * now / config.warmup
    if config.kind == "cosine":
        # An ended schedule stays at its end; a warm-up as long as the run leaves no room to fall.
        done = (now - config.warmup) / max(end - config.warmup, 1)
        return 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))
    if config.kind == "multistep":
        return config.gamma ** bisect.bisect_right(config.milestones, now)
    return 1.0


def set_lr(optimizer: Optimizer, factor: float) -> None:
    """Scale every group's learning rate from its base."""
    for group in optimizer.param_groups:
        rate = group["base_lr"] * factor
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(rate)  # a captured graph reads the rate from this tensor
        else:
            group["lr"] = rate
