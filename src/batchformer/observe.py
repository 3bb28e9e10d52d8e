"""How check looks: training passes with nothing random in them, and who moves when one does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from batchformer.heads import output_tensors
from batchformer.module import BatchFormer
from batchformer.probe import Batch


@dataclass(frozen=True)
class Observed:
    plain: Tensor | None  # (N, features)
    mixed: Tensor  # (N, features)


#: What goes into the modules: the model's own features, those at unit scale, or these with noise
#: in place of the first sample's, of the same scale or of ten times that.
Features = Literal["own", "unit", "unit_and_noise", "unit_and_loud_noise"]
LOUD = 10.0


def observe(
    model: nn.Module, modules: list[BatchFormer], batch: Batch, *, features: Features = "own"
) -> tuple[Observed, int]:
    """The two streams of one training pass, and the number of output rows."""
    torch.manual_seed(0)  # both passes draw alike; the caller's state is restored
    with torch.no_grad(), _features(modules, features), heard_by(modules) as heard:
        outputs = rows_of(batch.run(model), batch.rows)
    rows = outputs.shape[0]
    if heard:
        # At the module rather than at the logits: a classifier may still be all zeros.
        axis = modules[0].batch_axis
        plain, mixed = (t.movedim(axis, 0).flatten(1) for t in heard[0])
        return Observed(plain, mixed), rows
    if rows == 2 * batch.rows:
        return Observed(*outputs.chunk(2)), rows
    return Observed(None, outputs), rows


@contextmanager
def _features(modules: list[BatchFormer], features: Features) -> Iterator[None]:
    """Let the modules have these features.

    Those of an untrained network without batch statistics may be in the thousands, where attention
    has one sample for all; at unit scale whoever may be attended to is.
    """

    def replace(module: Any, args: tuple[Tensor, ...]) -> Tensor:
        x = args[0]
        x = (x - x.mean()) / (x.std() + torch.finfo(x.dtype).tiny)
        if features != "unit":
            row = x.select(module.batch_axis, 0)
            noise = torch.randn(row.shape, generator=torch.Generator().manual_seed(0))
            row.copy_(noise * (LOUD if features == "unit_and_loud_noise" else 1.0))
        return x

    changed = [] if features == "own" else list(dict.fromkeys(modules))
    handles = [module.register_forward_pre_hook(replace) for module in changed]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def heard_by(modules: list[BatchFormer]) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """Listen to what goes into and comes out of the modules, in the order of calls."""
    heard: list[tuple[Tensor, Tensor]] = []

    def listen(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
        heard.append((args[0], output))

    handles = [module.register_forward_hook(listen) for module in dict.fromkeys(modules)]
    try:
        yield heard
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def attention_alone(model: nn.Module, modules: list[BatchFormer], attached: bool) -> Iterator[None]:
    """Training as BatchFormer sees it, with nothing random and no batch statistics."""
    if attached:
        model.eval()
        for encoder in modules:
            encoder.train()
    else:
        model.train()
        for module in model.modules():
            kind = type(module).__name__.lower()
            if isinstance(module, (_BatchNorm, _DropoutNd)) or "drop" in kind or "stoch" in kind:
                module.eval()
    kinds = (BatchFormer, nn.MultiheadAttention)
    rates = [(m, m.dropout) for m in model.modules() if isinstance(m, kinds)]
    try:
        for attending, _ in rates:
            attending.dropout = 0.0
        yield
    finally:
        for attending, rate in rates:
            attending.dropout = rate


def with_copy(batch: Batch) -> Batch:
    """The same batch with its first sample replaced by a copy of another that differs from it."""
    for other in range(1, batch.rows):
        changed = batch.with_first_replaced(other)
        pairs = zip(
            (*batch.args, *batch.kwargs.values()),
            (*changed.args, *changed.kwargs.values()),
            strict=True,
        )
        if any(isinstance(a, Tensor) and not torch.equal(a, b) for a, b in pairs):
            return changed
    raise ValueError("check() needs samples that differ; all samples of this batch are the same.")


def rows_of(outputs: Any, samples: int) -> Tensor:
    """The first output, one row a sample: ``(rows, features)``; ``(L, N, K)`` is turned."""
    tensors = output_tensors(outputs)
    if not tensors:
        raise TypeError("check(): the model returned no floating-point tensor to look at.")
    first, counts = tensors[0].detach(), (samples, 2 * samples)
    if first.ndim > 1 and first.shape[0] not in counts and first.shape[1] in counts:
        first = first.transpose(0, 1)
    return first.reshape(len(first), -1)


def moved(before: Tensor, after: Tensor) -> Tensor:
    """Which rows other than the first differ by more than rounding, (N - 1,)."""
    before, after = before.double(), after.double()
    tolerance = 1e-6 * max(float(before.abs().max()), 1e-12)
    return (before - after).abs().amax(dim=1)[1:] > tolerance


def moved_rows(before: Tensor, after: Tensor) -> int:
    """How many rows other than the first differ by more than rounding."""
    return int(moved(before, after).sum())


def reached_by(outputs: list[Tensor], parameters: list[nn.Parameter]) -> list[bool]:
    """Which parameters a random linear loss of the outputs has a gradient for."""
    generator = torch.Generator().manual_seed(0)
    weights = [torch.randn(t.shape, generator=generator).to(t) for t in outputs]
    loss = sum((t * w).sum() for t, w in zip(outputs, weights, strict=True))
    if not isinstance(loss, Tensor) or not loss.requires_grad:
        return [False] * len(parameters)
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True, retain_graph=True)
    return [gradient is not None and bool(gradient.any()) for gradient in gradients]


def in_use(
    model: nn.Module, modules: list[BatchFormer], batch: Batch, attached: bool
) -> list[BatchFormer]:
    """All but frozen ones that no pass calls: copies that a wrapper keeps aside (PEFT)."""
    called: list[nn.Module] = []
    handles = [m.register_forward_pre_hook(lambda m, _: called.append(m)) for m in modules]
    try:
        with attention_alone(model, modules, attached), torch.no_grad():
            batch.run(model)
    finally:
        for handle in handles:
            handle.remove()
    idle = [m for m in modules if m not in called]
    aside = [m for m in idle if not any(p.requires_grad for p in m.parameters())]
    return modules if not called else [m for m in modules if m not in aside]
