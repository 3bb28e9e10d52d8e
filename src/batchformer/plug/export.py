"""One line out: ``detach`` changes the model back, ``export`` makes a plain copy."""

from __future__ import annotations

import copy
import re
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, TypeVar, overload

import torch
from torch import Tensor, nn

from batchformer.nn.arguments import a_model
from batchformer.nn.streams import leaves
from batchformer.plug.classifier import CHILD, AttachError, output_tensors
from batchformer.plug.example import find_batch, forget_example, remembered_example
from batchformer.plug.insertion import OURS, RECORD, find_record, is_sharded, remove, unwrap
from batchformer.plug.preserve import preserve_state
from batchformer.torch_private import COMPILED_MODULE, VERSIONS

M = TypeVar("M", bound=nn.Module)


def detach(model: M) -> M:
    """Remove BatchFormer: module objects, classes and keys are as before ``attach``.

    Raises:
        AttachError: nothing is attached to the model.

    >>> from batchformer import attach
    >>> model = attach(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4)), verbose=False)
    >>> list(detach(model).state_dict())
    ['0.weight', '0.bias', '1.weight', '1.bias']
    """
    a_model("detach()", model)
    _remove_all(unwrap(model), "detach")
    return model


def _remove_all(inner: nn.Module, caller: str) -> None:
    changed = any(isinstance(module, OURS) for module in inner.modules())
    if not changed and RECORD not in inner.__dict__:
        raise AttachError(
            f"{caller}(): BatchFormer is not attached to this {type(inner).__name__}; there is "
            f"nothing to remove. Call attach(model) first."
        )
    remove(inner)
    for part in inner.modules():  # the attached model may be a submodule of this one
        part.__dict__.pop(RECORD, None)
        forget_example(part)


@overload
def export(model: nn.Module, example: Any = ...) -> nn.Module: ...
@overload
def export(model: Mapping[str, Any]) -> dict[str, Any]: ...
def export(model: nn.Module | Mapping[str, Any], example: Any = None) -> Any:
    """A plain copy of an attached model, in eval, verified to give the same outputs.

    Given a state dict of an attached model, returns the entries of the plain model.

    The attached model stays as it is, so training can continue. Wrappers (DDP, compiled) are
    removed. The copy contains nothing of this library and can be loaded without it.

    Args:
        model: an attached model, or its state dict.
        example: one small batch as the model is called with it. By default the one that ``attach``
            was given, which copies and loaded models do not have, or a guessed one.

    Raises:
        RuntimeError: copy and original give different outputs on the example batch.
        ValueError: a checkpoint that contains a state dict was given in place of the state dict.
    """
    if isinstance(model, Mapping):
        for key, part in model.items():
            if isinstance(part, Mapping) and len(plain_state_dict(part)) < len(part):
                raise ValueError(
                    f"export(): this is not a state dict, but a checkpoint with a state dict in "
                    f"{key!r}. Call export(checkpoint[{key!r}])."
                )
        return plain_state_dict(model)
    a_model("export()", model)
    inner = unwrap(model)
    if is_sharded(inner):
        raise AttachError(
            "export(): the parameters are sharded (FSDP), and such a model cannot be copied. "
            "Gather its full state dict, and load export(state_dict) into the plain model."
        )
    with preserve_state(inner):
        inner.train()  # clears tensors that some modules cache in eval and that cannot be copied
        plain = copy.deepcopy(inner, _without_graphs(inner))
        _remove_all(plain, "export")
        plain.eval()
    holder, record = find_record(inner)
    batch = remembered_example(holder, plain) if example is None else None
    batch = batch or find_batch(plain, example, record.input_axis if record else 0)
    with preserve_state(inner), torch.no_grad():
        expected = output_tensors(batch.run(inner.eval()))
    with preserve_state(plain), torch.no_grad():  # from the same random state: eval may draw, too
        outputs = output_tensors(batch.run(plain))
    if len(expected) != len(outputs) or not all(map(same_bits, expected, outputs)):
        raise RuntimeError(
            "export(): the plain copy and the attached model in eval give different outputs, so "
            "something besides BatchFormer acts in eval. Run check(model, batch) to find it."
        )
    return plain


def _without_graphs(model: nn.Module) -> dict[int, Any]:
    """A memo for ``copy.deepcopy``: copies of tensors that modules keep from the last pass, by id.

    Tensors with a graph, such as features that a model stores, cannot be copied by torch.
    """
    kept = (part for module in model.modules() for _, part in leaves(vars(module)))
    with_graph = (part for part in kept if isinstance(part, Tensor) and not part.is_leaf)
    return {id(part): copy.deepcopy(part.detach()) for part in with_graph}


#: The key of a weight that every encoder has; group 1 is the prefix of the encoder's keys.
_IN_ENCODER = re.compile(rf"((?:.*\.)?{CHILD}\.)({COMPILED_MODULE}\.)?layers\.0\.self_attn\.")


def plain_state_dict(state_dict: Mapping[str, Any]) -> dict[str, Any]:
    """The plain model's state dict: an attached model's without the keys of its encoders.

    Keys of another module that is named like an encoder stay, and so do the versions of modules,
    without which some cannot be loaded.
    """
    found = (_IN_ENCODER.match(str(key)) for key in state_dict)
    encoders = tuple({match[1] for match in found if match})
    plain = OrderedDict((k, v) for k, v in state_dict.items() if not str(k).startswith(encoders))
    if hasattr(state_dict, VERSIONS):
        setattr(plain, VERSIONS, getattr(state_dict, VERSIONS))
    return plain


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Equality of every element, NaN equal to NaN."""
    return a.shape == b.shape and bool(((a == b) | (a.isnan() & b.isnan())).all())
