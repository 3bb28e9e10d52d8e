"""What an optimizer knows of BatchFormer's parameters: a group of their own, with its own rate."""

from __future__ import annotations

import gc
import warnings
from typing import Any

from torch import nn
from torch.optim import Optimizer

from batchformer.nn.module import BatchFormer

MODULE = "batchformer"
"""The name of the group that holds BatchFormer's parameters."""


def param_groups(
    model: nn.Module,
    lr: float,
    lr_factor: float = 0.1,
    *,
    weight_decay: float | None = None,
    module_weight_decay: float | None = None,
) -> list[dict[str, Any]]:
    """Every trainable parameter exactly once, BatchFormer's in a group with its own rate.

    Args:
        lr: learning rate of the model.
        lr_factor: BatchFormer's rate as a multiple of it; the paper uses 0.1.
        weight_decay: for both groups; the optimizer's own default if None.
        module_weight_decay: for BatchFormer's group alone.

    >>> from batchformer import attach
    >>> model = attach(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4)), verbose=False)
    >>> [(group["name"], group["lr"]) for group in param_groups(model, lr=0.5)]
    [('model', 0.5), ('batchformer', 0.05)]
    """
    modules = (m for m in model.modules() if isinstance(m, BatchFormer))
    mine = {id(p) for module in modules for p in module.parameters()}
    trainable = [p for p in model.parameters() if p.requires_grad]
    groups = [
        ("model", [p for p in trainable if id(p) not in mine], lr, weight_decay),
        (
            MODULE,
            [p for p in trainable if id(p) in mine],
            lr * lr_factor,
            weight_decay if module_weight_decay is None else module_weight_decay,
        ),
    ]
    return [
        {"params": params, "lr": rate, "name": name}
        | ({} if decay is None else {"weight_decay": decay})
        for name, params, rate, decay in groups
        if params
    ]


def extend(
    model: nn.Module, optimizer: Optimizer | None, added: list[nn.Parameter], factor: float
) -> None:
    """Give the new parameters to the optimizer, or say loudly that nobody trains them."""
    if optimizer is not None:
        rate = optimizer.param_groups[0]["lr"] * factor
        optimizer.add_param_group({"params": added, "lr": rate, "initial_lr": rate, "name": MODULE})
        return
    known = {id(p) for p in model.parameters()}
    kinds = _subclasses(Optimizer)
    # type() rather than isinstance(): lazy proxies must not be woken by looking at them.
    for found in [found for found in gc.get_objects() if type(found) in kinds]:
        groups = getattr(found, "param_groups", ())
        if any(id(p) in known for group in groups for p in group["params"]):
            warnings.warn(
                f"attach(): an optimizer ({type(found).__name__}) was built before and does not "
                f"know BatchFormer's {len(added)} parameters: THEY WILL NOT BE TRAINED. Pass "
                f"optimizer= to attach, or build the optimizer after it.",
                stacklevel=3,
            )
            return


def _subclasses(kind: type) -> set[type]:
    return {kind}.union(*map(_subclasses, kind.__subclasses__()))
