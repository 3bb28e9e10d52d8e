"""One line out: the model as it was before BatchFormer, itself or as a copy."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, TypeVar, overload

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel

from batchformer.plug.classifier import AttachError, output_tensors
from batchformer.plug.example import find_batch
from batchformer.plug.insertion import CHILD, RECORD, Attachment, PerStream, WithBatchFormer, remove
from batchformer.plug.preserve import preserve_state

# What may stand around a model or an optimizer: taken off, or refused with what to do.

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


# One line out: the model as it was before BatchFormer, itself or as a copy.

M = TypeVar("M", bound=nn.Module)


def detach(model: M) -> M:
    """Take BatchFormer away: the same module objects, classes and keys as before ``attach``.

    >>> from batchformer import attach
    >>> model = attach(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4)), verbose=False)
    >>> list(detach(model).state_dict())
    ['0.weight', '0.bias', '1.weight', '1.bias']
    """
    _take_away(unwrap(model), "detach")
    return model


def _take_away(inner: nn.Module, caller: str) -> None:
    ours = (WithBatchFormer, PerStream)
    changed = [module for module in inner.modules() if isinstance(module, ours)]
    if not changed and RECORD not in inner.__dict__:
        raise AttachError(
            f"{caller}(): BatchFormer is not attached to this {type(inner).__name__}; there is "
            f"nothing to take away."
        )
    for module in changed:
        remove(module)
    for part in inner.modules():  # the attached model may be a part of this one
        part.__dict__.pop(RECORD, None)


@overload
def export(model: nn.Module, example: Any = ...) -> nn.Module: ...
@overload
def export(model: Mapping[str, Any]) -> dict[str, Any]: ...
def export(model: nn.Module | Mapping[str, Any], example: Any = None) -> Any:
    """A plain copy of an attached model, in eval, proven to give the same outputs.

    Of an attached model's state dict, the entries of the plain model.

    The attached model is left as it is, so that training can go on. Wrappers (DDP, compiled) are
    taken off. The copy holds no trace of this library and needs none to be loaded.

    Raises:
        RuntimeError: the outputs of copy and original differ on the probe batch.
    """
    if isinstance(model, Mapping):
        return plain_state_dict(model)
    inner = unwrap(model)
    with preserve_state(inner):
        inner.train()  # tensors kept for eval, which may not be copied, are dropped here
        plain = copy.deepcopy(inner)
        _take_away(plain, "export")
        plain.eval()
    record: Attachment | None = inner.__dict__.get(RECORD)
    batch = find_batch(plain, example, record.input_axis if record else 0)
    with preserve_state(inner), torch.no_grad():
        kept = output_tensors(batch.run(inner.eval()))
        given = output_tensors(batch.run(plain))
    if len(kept) != len(given) or not all(map(same_bits, kept, given)):
        raise RuntimeError(
            "export(): the plain copy and the attached model in eval give different outputs, so "
            "something besides BatchFormer acts in eval. check(model, batch) says what it sees."
        )
    return plain


def plain_state_dict(state_dict: Mapping[str, Any]) -> dict[str, Any]:
    """An attached model's state dict without BatchFormer's keys: the plain model's."""
    return {key: value for key, value in state_dict.items() if f".{CHILD}." not in f".{key}"}


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Equality of every element, NaN equal to NaN."""
    return a.shape == b.shape and bool(((a == b) | (a.isnan() & b.isnan())).all())
