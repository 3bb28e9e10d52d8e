"""Passes that reuse what the backbone has computed, so that further ones take no time.

``check`` runs a batch, and the same with one sample replaced. Modules whose rows depend on nothing
but their own samples are known from these two passes. In later passes over the same samples, in
another order or repeated, such a module returns the rows that it has computed before. Its inputs
are compared with the earlier ones, and if they differ, the module runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from batchformer.nn.module import encoders_of, parameter_ids
from batchformer.nn.streams import leaves
from batchformer.plug.preserve import temporary_hooks
from batchformer.torch_private import VERSION

#: Rows that differ by less, relative to the largest entry, are the same but for rounding.
ROUNDING = 1e-4


class RecordedCall(NamedTuple):
    """The arguments and the output of one call, and the versions of the tensors in them."""

    arguments: list[Any]
    output: Any
    versions: list[object]

    @classmethod
    def of(cls, args: Any, kwargs: Any, output: Any) -> RecordedCall:
        arguments = [part for _, part in leaves((args, kwargs))]
        return cls(arguments, output, _versions(arguments, output))

    @property
    def unchanged(self) -> bool:
        """Whether nothing was written into these tensors, by the module or since."""
        return self.versions == _versions(self.arguments, self.output)


def _versions(arguments: list[Any], output: Any) -> list[object]:
    parts = [part for part in (*arguments, *(_tensors(output) or ())) if isinstance(part, Tensor)]
    # Inference tensors do not count what is written into them: they never compare as unchanged.
    return [object() if part.is_inference() else getattr(part, VERSION) for part in parts]


def _tensors(output: Any) -> list[Tensor] | None:
    """The tensors of an output that is a tensor, or a tuple or list of tensors; else None."""
    parts = list(output) if type(output) in (tuple, list) else [output]
    found = [part for part in parts if part is not None]
    return found if found and all(isinstance(part, Tensor) for part in found) else None


class Replay:
    """What modules have computed from a batch of ``samples`` rows.

    Attributes:
        share: the part of the model's weights outside encoders that replayed modules hold.
        width: the largest number of elements that one of them returns for a sample.
    """

    def __init__(self, model: nn.Module, samples: int) -> None:
        self.samples, self.share, self.width = samples, 0.0, 0
        encoders = encoders_of(model)
        inside = {id(m) for encoder in encoders for m in encoder.modules()}
        self.modules = {
            name: module
            for name, module in model.named_modules()
            if name and not isinstance(module, torch.jit.ScriptModule)
            if not inside & {id(part) for part in module.modules()}
        }
        held = parameter_ids(encoders)
        self.weights = sum(p.numel() for p in model.parameters() if id(p) not in held)
        self.recorded: list[dict[str, RecordedCall]] = []
        self.known: dict[str, RecordedCall] = {}

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record the calls of one pass."""
        calls: dict[str, list[RecordedCall]] = {name: [] for name in self.modules}
        begun: dict[str, RecordedCall] = {}

        def begin(name: str) -> Any:
            def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
                begun[name] = RecordedCall.of(args, kwargs, None)

            return hook

        def end(name: str) -> Any:
            def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
                call = RecordedCall.of(args, kwargs, output)
                calls[name].append(call if begun[name].unchanged else call._replace(versions=[]))

            return hook

        # Next to the module's own forward: after the user's pre-hooks and before the other hooks.
        handles = []
        for name, module in self.modules.items():
            handles.append(module.register_forward_pre_hook(begin(name), with_kwargs=True))
            handles.append(module.register_forward_hook(end(name), with_kwargs=True, prepend=True))
        with temporary_hooks(handles):
            yield
        once = {name: made[0] for name, made in calls.items() if len(made) == 1}
        self.recorded.append({name: call for name, call in once.items() if call.unchanged})

    def prove(self, index: Sequence[int]) -> None:
        """Find the modules that treat each row separately, from two recorded passes.

        Args:
            index: the samples of the second pass by their number in the first.
        """
        first, second = self.recorded
        order = torch.tensor(index, device="cpu")
        for name, module in self.modules.items():
            if any(name.startswith(f"{outer}.") for outer in self.known):
                continue
            pair = first.get(name), second.get(name)
            if pair[0] and pair[1] and self._is_apart(pair[0], pair[1], order):
                self.known[name] = pair[0]
                returned = sum(t.numel() for t in _tensors(pair[0].output) or ())
                self.width = max(self.width, returned // self.samples)
                self.share += sum(p.numel() for p in module.parameters()) / max(self.weights, 1)
        self.recorded = []

    def _is_apart(self, first: RecordedCall, second: RecordedCall, order: Tensor) -> bool:
        pair = _tensors(first.output), _tensors(second.output)
        if pair[0] is None or pair[1] is None or len(pair[0]) != len(pair[1]):
            return False
        if not all(t.ndim and len(t) == self.samples for t in pair[0]):
            return False
        return all(map(_same, (t[order.to(t.device)] for t in pair[0]), pair[1]))

    @contextmanager
    def replaying(self, index: Sequence[int]) -> Iterator[None]:
        """Within the block, known modules return what they computed for these samples.

        Only their forward is replaced, so their hooks act as before.
        """
        order = torch.tensor(index, device="cpu")

        def replay(name: str, own: Callable[..., Any]) -> Callable[..., Any]:
            def forward(*args: Any, **kwargs: Any) -> Any:
                call = self.known[name]
                given = [part for _, part in leaves((args, kwargs))]
                if not self._has_seen(call.arguments, given, order):
                    return own(*args, **kwargs)
                return _selected(call.output, order)

            return forward

        modules = {name: self.modules[name] for name in self.known}
        kept = [(module, vars(module).get("forward")) for module in modules.values()]
        try:
            for name, module in modules.items():
                vars(module)["forward"] = replay(name, module.forward)
            yield
        finally:
            for module, own in reversed(kept):
                if own is None:
                    vars(module).pop("forward", None)
                else:
                    vars(module)["forward"] = own

    def _has_seen(self, before: list[Any], now: list[Any], order: Tensor) -> bool:
        if len(before) != len(now):
            return False
        for old, new in zip(before, now, strict=True):
            if isinstance(old, Tensor) and isinstance(new, Tensor):
                rows = old.ndim and new.ndim and len(old) == self.samples
                picked = old[order.to(old.device)] if rows and len(new) == len(order) else old
                if not _same(picked, new):
                    return False
            elif old is not new and not (type(old) is type(new) and bool(old == new)):
                return False
        return True


def _same(old: Tensor, new: Tensor) -> bool:
    """Whether two tensors are equal but for rounding."""
    if old.shape != new.shape or old.dtype != new.dtype:
        return False
    if not old.is_floating_point() or not old.numel():
        return torch.equal(old, new)
    a, b = old.detach(), new.detach()
    return bool((a - b).abs().max() <= ROUNDING * a.abs().max())


def _selected(output: Any, order: Tensor) -> Any:
    def select(part: Tensor) -> Tensor:
        chosen = part.detach()[order.to(part.device)]
        return chosen.requires_grad_(part.requires_grad and torch.is_grad_enabled())

    if isinstance(output, Tensor):
        return select(output)
    return type(output)(None if part is None else select(part) for part in output)
