"""Where BatchFormer goes: from names to places, proven by one training pass."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from batchformer.nn.module import BatchFormer, without_exchange
from batchformer.plug.classifier import (
    OWN_FORWARD,
    AttachError,
    Call,
    Trace,
    channel_axis,
    find_classifiers,
    output_tensors,
    without_auxiliary,
)
from batchformer.plug.example import Batch, passed
from batchformer.plug.insertion import CHILD, Place, SharedStream, WithBatchFormer, insert
from batchformer.plug.preserve import preserve_state

# Where BatchFormer goes: from names to places.

At = str | nn.Module | Sequence[str | nn.Module]


def resolve(model: nn.Module, at: At | None, record: Trace) -> list[str]:
    """Names of the modules to stand before, in the order of their calls."""
    if at is None:
        return find_classifiers(model, record)
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
        names = find_classifiers(model, record)
    except AttachError:
        return  # a reminder is a courtesy: without one classifier there is none
    for name in names:
        if not isinstance(record.calls[name].module, WithBatchFormer):
            insert(record.calls[name].module, Place("pass", (owner,), remind=True))


# One training pass on the probe batch, to prove that rows double before anybody trains.


@dataclass
class Rehearsal:
    """What one training pass showed.

    Attributes:
        outputs: tensors that a loss would use, but for auxiliary ones.
        read: each place that was passed, with the features it read.
        encoded: the encoders, once for each time they ran.
        norms: BatchNorm modules that saw twice the rows they see in eval.
        later: places that read rows which an earlier place had doubled.
    """

    outputs: list[Tensor] = field(default_factory=list)
    read: list[tuple[Place, Tensor]] = field(default_factory=list)
    encoded: list[nn.Module] = field(default_factory=list)
    norms: list[nn.Module] = field(default_factory=list)
    later: list[Place] = field(default_factory=list)


def dry_run(
    model: nn.Module, batch: Batch, calls: list[Call], streams: str, record: Trace, strict: bool
) -> list[nn.Module]:
    """Train once on the probe batch: settle the roles, count the rows, find the norms after.

    Args:
        strict: every output must double; otherwise one is enough (auxiliary outputs may stay).

    Returns:
        The BatchNorm modules that see both streams.

    Raises:
        AttachError: rows are lost, doubled twice or not accepted by what follows.
    """
    tried = [call.name for call in calls]
    names = ", ".join(map(repr, tried))
    try:
        seen = _rehearse(model, batch, calls, record)
    except Exception as error:
        raise AttachError(
            f"attach(): with BatchFormer at {names} a training pass fails: {error}. What follows "
            f"the place does not take 2N rows. {record.candidates(tried)}"
        ) from error
    for place in seen.later:  # a pass without values undoes what it changed
        place.role = "mix_second_half"
    _settle_streams(seen.read)
    if len(seen.encoded) > len(seen.read):
        raise AttachError(
            f"attach(): with BatchFormer at {names} it is run {len(seen.encoded)} times in a "
            f"training pass. A container there runs all its children, BatchFormer among them: "
            f"choose its first layer instead. {record.candidates(tried)}"
        )
    expected = 2 * batch.rows if streams == "shared" else batch.rows
    axes = {0, *(place.encoder.batch_axis for place in _places(calls))}
    fits = [expected in {t.shape[a] for a in axes if a < t.ndim} for t in seen.outputs]
    if len(record.shapes) == len(fits):  # rows on another axis: experts stacked as (E, N, K)
        fits = [
            fit or _grown(t.shape, shape, batch.rows, expected)
            for fit, t, shape in zip(fits, seen.outputs, record.shapes, strict=True)
        ]
    if not any(fits) or (strict and not all(fits)):
        lines = OWN_FORWARD.format(channels=_places(calls)[0].encoder.dim)
        raise AttachError(
            f"attach(): with BatchFormer at {names} a training pass gives outputs of shapes "
            f"{[tuple(t.shape) for t in seen.outputs]} for {batch.rows} samples, not {expected} "
            f"rows. Mixed rows are lost after the place (a head for each token, pooled later, as "
            f"in GPT-2), or an output passes it by: choose its classifier by name. "
            f"{lines} {record.candidates(tried, lines=False)}"
        )
    return seen.norms


def _grown(shape: torch.Size, in_eval: torch.Size, samples: int, expected: int) -> bool:
    """Whether a training output has the shape of eval but for one axis, that of the samples."""
    return any(
        size == samples and (*in_eval[:axis], expected, *in_eval[axis + 1 :]) == tuple(shape)
        for axis, size in enumerate(in_eval)
    )


def _rehearse(model: nn.Module, batch: Batch, calls: list[Call], record: Trace) -> Rehearsal:
    with preserve_state(model), without_exchange(model), torch.no_grad():
        model.train()
        return passed(model, batch, lambda batch: _train_once(model, batch, calls, record))


def _train_once(model: nn.Module, batch: Batch, calls: list[Call], record: Trace) -> Rehearsal:
    seen = Rehearsal()
    encoders = dict.fromkeys(place.encoder for place in _places(calls))
    later_axis = any(encoder.batch_axis for encoder in encoders)
    in_eval = {call.module: call.source for call in record.calls.values()}

    def settle(module: Any, args: tuple[Any, ...]) -> None:
        place = module._place
        seen.read.append((place, args[0]))
        if place.role == "double" and args[0].shape[place.encoder.batch_axis] == 2 * batch.rows:
            place.role = "mix_second_half"
            seen.later.append(place)

    def notice(module: nn.Module, args: tuple[Any, ...]) -> None:
        # Twice what it was, rather than 2N: tokens may have been flattened into the rows.
        before = in_eval.get(module)
        rows = batch.rows if before is None or later_axis else before.shape[0]
        if args[0].shape[0] == 2 * rows:
            seen.norms.append(module)

    def count(module: nn.Module, args: tuple[Any, ...]) -> None:
        seen.encoded.append(module)

    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    handles = [call.module.register_forward_pre_hook(settle) for call in calls]
    handles += [encoder.register_forward_pre_hook(count) for encoder in encoders]
    handles += [norm.register_forward_pre_hook(notice) for norm in norms]
    try:
        seen.outputs = output_tensors(without_auxiliary(batch.run(model)))
    finally:
        for handle in handles:
            handle.remove()
    return seen


def _places(calls: list[Call]) -> list[Place]:
    return [call.module.__dict__["_place"] for call in calls]


def _settle_streams(read: list[tuple[Place, Tensor]]) -> None:
    """Heads share one mixed stream only if they read the very same features in training too."""
    for stream in [place.stream for place, _ in read]:
        group = [(place, x) for place, x in read if place.stream is stream]
        one = len({id(x) for _, x in group}) == 1
        if stream is not None and not (one and len(group) == stream.readers):
            for place, _ in group:
                place.stream = None
