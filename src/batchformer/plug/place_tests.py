"""Does every place mix samples? Each module that attends is tried alone, on what it read in a pass.

If a model has several encoders, the outputs show only that one of them mixes samples.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from batchformer.nn.module import BatchFormer
from batchformer.nn.streams import leaves
from batchformer.plug.noise import fixed_noise
from batchformer.plug.observe import LOUD, at_unit_scale, moved
from batchformer.plug.preserve import temporary_hooks

#: BatchFormer, and what many models use in place of it.
KINDS = (BatchFormer, nn.TransformerEncoder, nn.TransformerEncoderLayer, nn.MultiheadAttention)


class AttentionCall(NamedTuple):
    """One call of a module that attends."""

    name: str
    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def read(self) -> Tensor | None:
        """The tensor that it attends over."""
        parts = (part for _, part in leaves((self.args, self.kwargs)))
        return next((t for t in parts if isinstance(t, Tensor) and t.is_floating_point()), None)

    @property
    def length(self) -> int:
        """How many rows it reads; grows with the batch, unless samples are split into groups."""
        x = self.read
        if x is None or x.ndim < 2 or not x.numel():
            return 0
        if isinstance(self.module, BatchFormer):
            return x.shape[self.module.batch_axis]
        return x.numel() // x.shape[-1]


@dataclass(eq=False, repr=False)
class AttentionRecord:
    """What attends in a pass."""

    # Calls of modules of :data:`KINDS`, except those inside another such module
    calls: list[AttentionCall] = field(default_factory=list)
    alone: int = 0  # softmaxes over an axis of length one


class _CountAlone(TorchFunctionMode):
    def __init__(self, found: AttentionRecord) -> None:
        super().__init__()
        self.found = found

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        first, second, *_ = (*args, None, None)
        if func in (F.softmax, torch.softmax, Tensor.softmax):
            x, dim = kwargs.get("input", first), kwargs.get("dim", second)
            self.found.alone += isinstance(dim, int) and x.ndim and x.shape[dim] == 1
        elif func is F.scaled_dot_product_attention:
            self.found.alone += kwargs.get("key", second).shape[-2] == 1
        return func(*args, **kwargs)


@contextmanager
def record_attention(model: nn.Module) -> Iterator[AttentionRecord]:
    """Within the block, record what attends in the passes."""
    found = AttentionRecord()
    every = [(name, m) for name, m in model.named_modules() if isinstance(m, KINDS)]
    inside = {id(part) for _, m in every for part in m.modules() if part is not m}

    def record(name: str) -> Any:
        def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
            if module.training or not isinstance(module, BatchFormer):
                found.calls.append(AttentionCall(name, module, args, kwargs))

        return hook

    handles = [
        module.register_forward_pre_hook(record(name), with_kwargs=True)
        for name, module in every
        if id(module) not in inside
    ]
    with temporary_hooks(handles), _CountAlone(found):
        yield found


def places_of(now: AttentionRecord, in_eval: AttentionRecord) -> dict[str, nn.Module]:
    """The modules that mix samples, by name. What attends in eval too is a part of the backbone."""
    backbone = {id(call.module) for call in in_eval.calls}
    return {
        call.name: call.module
        for call in now.calls
        if isinstance(call.module, BatchFormer) or id(call.module) not in backbone
    }


@contextmanager
def left_out(module: nn.Module) -> Iterator[None]:
    """Within the block, a module returns what it reads or, if that cannot be its output, zeros."""

    def skip(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        if isinstance(output, tuple):  # attention alone: its output is the first tensor
            return torch.zeros_like(output[0]), *output[1:]
        return args[0] if args and args[0].shape == output.shape else torch.zeros_like(output)

    with module.register_forward_hook(skip):
        yield


def idle_place(now: AttentionRecord, in_eval: AttentionRecord) -> str | None:
    """Where a training pass attends, but no sample reaches another; None if nowhere."""
    places = places_of(now, in_eval)
    for call in now.calls:
        control = isinstance(call.module, BatchFormer) and call.module.attend == "self"
        if call.name in places and not control and _mixes(call) is False:
            return f"in {call.name} every sample attends only to itself"
    if now.alone > in_eval.alone:
        return "attention in training runs over an axis of length one"
    return None


def place_in_groups(
    now: AttentionRecord,
    larger: AttentionRecord,
    in_eval: AttentionRecord,
    samples: tuple[int, int],
) -> str | None:
    """Which module attends over only a part of a larger batch, in words; None if none does."""
    places = places_of(now, in_eval)
    for call in now.calls:
        if call.name not in places:
            continue
        lengths = [other.length for other in larger.calls if other.module is call.module]
        if not lengths or max(lengths) - call.length >= samples[1] - samples[0]:
            continue  # beside the samples it may attend to a memory, which does not grow
        if max(lengths) * samples[0] < call.length * samples[1]:
            reached = max(lengths) * samples[0] // call.length
            return f"{call.name} attends over {reached} of {samples[1]} samples"
    return None


def _mixes(call: AttentionCall) -> bool | None:
    """Whether one position can change another, with features at unit scale; None if not known."""
    x = call.read
    if x is None or x.ndim < 2:
        return None
    axis = call.module.batch_axis if isinstance(call.module, BatchFormer) else None
    try:
        for scale in (1.0, LOUD):
            for position in range(2):
                if _moves_others(call, x.shape, axis, position, scale):
                    return True
    except Exception:  # it does not run alone
        return None
    return False


def _moves_others(
    call: AttentionCall, shape: torch.Size, axis: int | None, position: int, scale: float
) -> bool:
    """Whether noise at one position moves the outputs at others.

    Args:
        axis: the axis of the positions; None if every vector on the last axis is a position.
    """

    def positions(x: Tensor) -> Tensor:
        return x.reshape(-1, x.shape[-1]) if axis is None else x.movedim(axis, 0)

    def changed(part: Any, noisy: bool) -> Any:
        if not isinstance(part, Tensor) or part.shape != shape:
            return part
        x = at_unit_scale(part).contiguous()
        if noisy:
            slot = positions(x)[position % len(positions(x))]
            slot.copy_(scale * fixed_noise(slot))
        return x

    outputs = []
    with torch.no_grad():
        for noisy in (False, True):
            args = [changed(part, noisy) for part in call.args]
            kwargs = {key: changed(part, noisy) for key, part in call.kwargs.items()}
            output = call.module(*args, **kwargs)
            output = output[0] if isinstance(output, tuple) else output
            outputs.append(positions(output).flatten(1))
    shifts = moved(outputs[:1], outputs[1:])
    shifts[position % len(shifts)] = False
    return bool(shifts.any())
