"""One training pass on the probe batch, to prove that rows double before anybody trains."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from batchformer.heads import (
    OWN_FORWARD,
    AttachError,
    Call,
    Trace,
    output_tensors,
    without_auxiliary,
)
from batchformer.insertion import Place
from batchformer.module import without_exchange
from batchformer.probe import Batch, passed
from batchformer.snapshot import untouched


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
    with untouched(model), without_exchange(model), torch.no_grad():
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
