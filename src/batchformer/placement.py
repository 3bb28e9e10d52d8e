"""Where BatchFormer goes: from names to places, and the dry run that proves the rows double."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from batchformer.heads import AttachError, Call, Trace, channel_axis, find_heads, output_tensors
from batchformer.insertion import CHILD, Place, SharedStream, insert
from batchformer.module import BatchFormer
from batchformer.probe import Batch
from batchformer.snapshot import untouched
from batchformer.swap import Swapped


def resolve(model: nn.Module, at: str | Sequence[str] | None, record: Trace) -> list[str]:
    """Names of the modules to stand before, in the order of their calls."""
    if at is None:
        return find_heads(model, record)
    modules = dict(model.named_modules())
    chosen = []
    for name in [at] if isinstance(at, str) else list(at):
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


def usable(call: Call, batch: Batch, record: Trace) -> Call:
    """The call, if its input is one tensor of samples and it is called once."""
    if call.times > 1:
        raise AttachError(
            f"attach(): {call.name!r} is called {call.times} times in one forward pass, so its "
            f"rows would double more than once. {record.candidates()}"
        )
    others = [*call.args[1:], *call.kwargs.values()]
    if call.source is None or any(
        isinstance(other, Tensor) and other.ndim and batch.rows in other.shape[:2]
        for other in others
    ):
        raise AttachError(
            f"attach(): the input of {call.name!r} is not one tensor of samples, so doubling its "
            f"first argument would not fit the others. {record.candidates()}"
        )
    if hasattr(call.module, CHILD):
        raise AttachError(f"attach(): {call.name!r} has an attribute named {CHILD!r} of its own.")
    return call


def axes_of(call: Call, batch: Batch, rows: int | None, width: int | None) -> tuple[int, int]:
    """The batch axis and the channel axis of the place's input."""
    assert call.source is not None
    shape = tuple(call.source.shape)
    if rows is None:
        rows = next((axis for axis in (0, 1) if shape[axis : axis + 1] == (batch.rows,)), None)
    if rows is None or len(shape) < 2 or shape[rows] != batch.rows:
        raise AttachError(
            f"attach(): the input of {call.name!r} has shape {shape} for {batch.rows} samples; no "
            f"axis holds the samples. Choose another place, or set batch_axis."
        )
    return rows, channel_axis(call) if width is None else width


def insert_all(calls: list[Call], modules: list[BatchFormer], streams: str) -> None:
    pairs = [(id(call.source), id(module)) for call, module in zip(calls, modules, strict=True)]
    shared = {pair: SharedStream(pairs.count(pair)) for pair in pairs if pairs.count(pair) > 1}
    owned: set[int] = set()
    for call, module, pair in zip(calls, modules, pairs, strict=True):
        place = Place("double" if streams == "shared" else "mix_all", (module,), remind=True)
        if streams == "shared":
            place.stream = shared.get(pair)
        insert(call.module, place, own=id(module) not in owned)
        owned.add(id(module))


def remind_at_outputs(model: nn.Module, record: Trace, module: BatchFormer) -> None:
    """Where BatchFormer stands deep inside, let the classifier's outputs remember the streams."""
    try:
        names = find_heads(model, record)
    except AttachError:
        return  # a reminder is a courtesy: without one classifier there is none
    for name in names:
        if not isinstance(record.calls[name].module, Swapped):
            insert(record.calls[name].module, Place("pass", (module,), remind=True), own=False)


def dry_run(
    model: nn.Module, batch: Batch, calls: list[Call], streams: str, record: Trace, strict: bool
) -> list[nn.Module]:
    """Train once on the probe batch: settle the roles, count the rows, find the norms after."""
    doubled: list[nn.Module] = []
    places: list[Place] = [call.module.__dict__["_place"] for call in calls]
    read: list[tuple[Place, Tensor]] = []
    encoded: list[nn.Module] = []
    in_eval = {call.module: call.source for call in record.calls.values()}

    def settle(module: Any, args: tuple[Any, ...]) -> None:
        place = module._place
        read.append((place, args[0]))
        if place.role == "double" and args[0].shape[place.owner[0].batch_axis] == 2 * batch.rows:
            place.role = "mix_second_half"

    def notice(module: nn.Module, args: tuple[Any, ...]) -> None:
        # Twice what it was, rather than 2N: tokens may have been flattened into the rows.
        before = in_eval.get(module)
        rows = batch.rows if before is None or later_axis else before.shape[0]
        if args[0].shape[0] == 2 * rows:
            doubled.append(module)

    def count(module: nn.Module, args: tuple[Any, ...]) -> None:
        encoded.append(module)

    encoders = dict.fromkeys(place.owner[0] for place in places)
    later_axis = any(encoder.batch_axis for encoder in encoders)
    norm_types = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
    handles = [call.module.register_forward_pre_hook(settle) for call in calls]
    handles += [encoder.register_forward_pre_hook(count) for encoder in encoders]
    handles += [
        module.register_forward_pre_hook(notice)
        for module in model.modules()
        if isinstance(module, norm_types)
    ]
    names = ", ".join(repr(call.name) for call in calls)
    try:
        with untouched(model), torch.no_grad():
            model.train()
            outputs = batch.run(model)
    except Exception as error:
        raise AttachError(
            f"attach(): with BatchFormer at {names} a training pass fails: {error}. What follows "
            f"the place does not take 2N rows. {record.candidates()}"
        ) from error
    finally:
        for handle in handles:
            handle.remove()
    _settle_streams(read)
    if len(encoded) > len(read):
        raise AttachError(
            f"attach(): with BatchFormer at {names} it is run {len(encoded)} times in a training "
            f"pass. A container there runs all its children, BatchFormer among them: choose its "
            f"first layer instead. {record.candidates()}"
        )
    expected = 2 * batch.rows if streams == "shared" else batch.rows
    axes = {0, *(place.owner[0].batch_axis for place in places)}
    fits = [expected in {t.shape[a] for a in axes if a < t.ndim} for t in output_tensors(outputs)]
    if not any(fits) or (strict and not all(fits)):
        shapes = [tuple(t.shape) for t in output_tensors(outputs)]
        raise AttachError(
            f"attach(): with BatchFormer at {names} a training pass gives outputs of shapes "
            f"{shapes} for {batch.rows} samples, not {expected} rows. Mixed rows are lost after "
            f"the place (a token-wise head pooled later), or an auxiliary output passes it by. "
            f"{record.candidates()}"
        )
    return doubled


def _settle_streams(read: list[tuple[Place, Tensor]]) -> None:
    """Heads share one mixed stream only if they read the very same features in training too."""
    for stream in [place.stream for place, _ in read]:
        group = [(place, x) for place, x in read if place.stream is stream]
        one = len({id(x) for _, x in group}) == 1
        if stream is not None and not (one and len(group) == stream.readers):
            for place, _ in group:
                place.stream = None
