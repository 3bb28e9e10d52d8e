"""Where BatchFormer goes: from names to places."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor, nn

from batchformer.nn.module import BatchFormer
from batchformer.plug.classifier import (
    OWN_FORWARD,
    AttachError,
    Call,
    Trace,
    channel_axis,
    find_heads,
)
from batchformer.plug.example import Batch
from batchformer.plug.insertion import CHILD, Place, SharedStream, WithBatchFormer, insert

At = str | nn.Module | Sequence[str | nn.Module]


def resolve(model: nn.Module, at: At | None, record: Trace) -> list[str]:
    """Names of the modules to stand before, in the order of their calls."""
    if at is None:
        return find_heads(model, record)
    modules = dict(model.named_modules())
    chosen = []
    several = isinstance(at, Iterable) and not isinstance(at, (str, nn.Module))
    places: Iterable[Any] = at if several else [at]  # type: ignore[assignment]
    for place in places:
        name = _name_of(place, modules, model)
        if name not in modules or not name:
            raise AttachError(
                f"attach(): {type(model).__name__} has no submodule {name!r}. {record.candidates()}"
            )
        while isinstance(modules[name], nn.Sequential) and len(modules[name]):
            # A child of a Sequential would run as its last layer; its first layer reads the same.
            name = f"{name}.{next(iter(modules[name]._modules))}"
        if name not in record.calls:
            raise AttachError(
                f"attach(): {name!r} is not called in a forward pass, so BatchFormer would never "
                f"act there. {record.candidates()}"
            )
        chosen.append(name)
    if not chosen or len(set(chosen)) < len(chosen):
        raise AttachError(f"attach(): at={at!r} names no place, or one place twice.")
    order = list(record.calls)
    return sorted(chosen, key=order.index)


def _name_of(place: Any, modules: dict[str, nn.Module], model: nn.Module) -> str:
    if isinstance(place, str):
        return place
    if not isinstance(place, nn.Module):
        raise AttachError(
            f"attach(): at= takes the name of a submodule, the submodule itself, or a list of "
            f"them, not {place!r}. Names are those of model.named_modules(), such as 'layer4.1'."
        )
    found = [name for name, module in modules.items() if module is place]
    if not found:
        raise AttachError(
            f"attach(): at= is a {type(place).__name__} that is no submodule of this "
            f"{type(model).__name__}."
        )
    return found[0]


def usable(call: Call, batch: Batch, record: Trace) -> Call:
    """The call, if its input is one tensor of samples and it is called once."""
    if call.times > 1:
        raise AttachError(
            f"attach(): {call.name!r} is called {call.times} times in one forward pass, so its "
            f"rows would double more than once. {record.candidates([call.name])}"
        )
    others = [*call.args[1:], *call.kwargs.values()]
    if call.source is None or any(
        isinstance(other, Tensor) and other.ndim and batch.rows in other.shape[:2]
        for other in others
    ):
        raise AttachError(
            f"attach(): the input of {call.name!r} is not one tensor of samples, so doubling its "
            f"first argument would not fit the others. {record.candidates([call.name])}"
        )
    if "forward" in vars(call.module):
        raise AttachError(
            f"attach(): {call.name!r} has a forward of its own, set on the object (hooks of "
            f"Accelerate's device_map do that), which runs instead of its class's, so BatchFormer "
            f"would never act. Attach first and set it afterwards, or take it away: "
            f"accelerate.hooks.remove_hook_from_module(module, recurse=True)."
        )
    if hasattr(call.module, CHILD):
        raise AttachError(f"attach(): {call.name!r} has an attribute named {CHILD!r} of its own.")
    return call


def axes_of(
    call: Call, batch: Batch, rows: int | None, width: int | None, record: Trace
) -> tuple[int, int]:
    """The batch axis and the channel axis of the place's input."""
    assert call.source is not None
    shape = tuple(call.source.shape)
    if rows is None:
        rows = next((axis for axis in (0, 1) if shape[axis : axis + 1] == (batch.rows,)), None)
    known = rows is not None and len(shape) >= 2 and -len(shape) <= rows < len(shape)
    if rows is None or not known or shape[rows] != batch.rows:
        raise AttachError(
            f"attach(): the input of {call.name!r} has shape {shape} for {batch.rows} samples; no "
            f"axis holds the samples. Choose another place; set input_axis=1 if the inputs of the "
            f"model are (L, N, ...), or batch_axis for this place. Rows of regions, as in a "
            f"detector's box head, are not samples: the model doubles no labels for them. "
            f"{OWN_FORWARD.format(channels=shape[-1])} "
            f"{record.candidates([call.name], lines=False)}"
        )
    if width is not None and not -len(shape) <= width < len(shape):
        raise AttachError(
            f"attach(): the input of {call.name!r} has shape {shape} and no axis {width}; "
            f"channel_axis runs from {-len(shape)} to {len(shape) - 1}."
        )
    return rows, channel_axis(call) if width is None else width


def insert_all(calls: list[Call], modules: list[BatchFormer], streams: str) -> None:
    pairs = [(id(call.source), id(module)) for call, module in zip(calls, modules, strict=True)]
    shared = {pair: SharedStream(pairs.count(pair)) for pair in pairs if pairs.count(pair) > 1}
    owners: dict[int, nn.Module] = {}
    for call, module, pair in zip(calls, modules, pairs, strict=True):
        owner = owners.setdefault(id(module), call.module)
        place = Place("double" if streams == "shared" else "mix_all", (owner,), remind=True)
        if streams == "shared":
            place.stream = shared.get(pair)
        insert(call.module, place, module if owner is call.module else None)


def remind_at_outputs(model: nn.Module, record: Trace, owner: nn.Module) -> None:
    """Where BatchFormer stands deep inside, let the classifier's outputs remember the streams."""
    try:
        names = find_heads(model, record)
    except AttachError:
        return  # a reminder is a courtesy: without one classifier there is none
    for name in names:
        if not isinstance(record.calls[name].module, WithBatchFormer):
            insert(record.calls[name].module, Place("pass", (owner,), remind=True))
