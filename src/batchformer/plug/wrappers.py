"""What may stand around a model or an optimizer: taken off, or refused with what to do."""

from __future__ import annotations

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel

from batchformer.plug.attachment import RECORD
from batchformer.plug.classifier import AttachError

_WRAPPERS = (nn.parallel.DistributedDataParallel, nn.DataParallel, AveragedModel)


def unwrap(model: nn.Module) -> nn.Module:
    """The model inside DDP, DataParallel, a weight average or a compiled wrapper.

    A wrapper of another library (timm's ``ModelEmaV3``) is known by its only child: ``module``, to
    which BatchFormer is attached.
    """
    while True:
        if isinstance(model, _WRAPPERS):
            model = model.module
        elif isinstance(getattr(model, "_orig_mod", None), nn.Module):
            model = model._orig_mod  # type: ignore[assignment]
        elif [*model._modules] == ["module"] and RECORD in vars(model.module):
            model = model.module  # type: ignore[assignment]
        else:
            return model


def refuse_wrapped(model: nn.Module) -> None:
    name = type(model).__name__
    if isinstance(model, torch.jit.ScriptModule):
        raise AttachError("attach(): a TorchScript model cannot change; attach before scripting.")
    if isinstance(model, nn.DataParallel):
        raise AttachError(
            "attach(): nn.DataParallel is not supported: its replicas would share one device's "
            "encoder. Attach to the model inside and train with DistributedDataParallel."
        )
    if unwrap(model) is not model or getattr(model, "_compiled_call_impl", None) is not None:
        raise AttachError(
            f"attach(): the model is wrapped ({name}). Attach to the model inside and wrap it "
            f"afterwards, so that the wrapper sees the new parameters."
        )
    if any(
        "FSDP" in base.__name__ or "FullySharded" in base.__name__ for base in type(model).mro()
    ):
        raise AttachError(
            f"attach(): the parameters are sharded already ({name}). Attach first, then shard."
        )


def refuse_scheduled(optimizer: Optimizer | None) -> None:
    """A scheduler holds one rate for each group it knew: a new group would break its next step."""
    if optimizer is not None and not hasattr(optimizer, "param_groups"):
        raise AttachError(
            f"attach(): optimizer= takes an optimizer of torch's to add BatchFormer's parameters "
            f"to, not {type(optimizer).__name__}."
        )
    if optimizer is not None and hasattr(optimizer.step, "_wrapped_by_lr_sched"):
        raise AttachError(
            "attach(): a learning-rate scheduler was built on this optimizer and would not know "
            "BatchFormer's group. Attach first, then build the scheduler."
        )
