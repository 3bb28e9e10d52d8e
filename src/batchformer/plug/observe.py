"""The tools of ``check``'s experiments: observed passes, comparisons, gradients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from batchformer.nn.module import BatchFormer
from batchformer.plug.batches import select_samples
from batchformer.plug.example import Batch
from batchformer.plug.noise import fixed_noise
from batchformer.plug.outputs import InEval, Layout, find_rows, named_outputs, training_layout
from batchformer.plug.preserve import ModelState, random_states, seed_all, temporary_hooks
from batchformer.plug.replay import Replay
from batchformer.torch_private import gradients_of

#: Training steps that are skipped to see whether the model still mixes later. It is a prime, so
#: that a model which mixes in every second or third step is seen in another one.
STEPS = 1009

#: Seeds that are tried if a model draws random numbers that cannot be switched off.
SEEDS = 4


# ---- Passes.


@dataclass(eq=False, repr=False)  # methods that are not generated take no time at import
class Pass:
    """One training pass."""

    names: list[str]  # the paths of the outputs
    outputs: list[Tensor]  # the tensors that a loss would use
    # Encoders that were called, with their inputs and outputs
    calls: list[tuple[BatchFormer, Tensor, Tensor]]
    noisy: bool = False  # whether it drew random numbers
    # The random states at its end, equal in passes that drew equally much
    states: tuple[Any, ...] = ()
    # The outputs that have rows, as (rows, features) each
    rows: list[Tensor] = field(default_factory=list)
    row_names: list[str] = field(default_factory=list)  # the paths of these

    def count(self, samples: int) -> int:
        """Rows of the output that has twice as many as samples, or else of the first output."""
        counts = [len(t) for t in self.rows]
        return 2 * samples if 2 * samples in counts else counts[0]


@dataclass(eq=False, repr=False)
class Experiment:
    """A model whose noise is fixed, and a batch of N samples for it.

    Every pass starts with the buffers and attributes that the model has now, and with the same
    random numbers.
    """

    model: nn.Module
    batch: Batch
    encoders: list[BatchFormer]
    # Where the outputs have their rows, as far as known
    layout: Layout = field(default_factory=list)
    in_eval: dict[str, InEval] = field(default_factory=dict)  # the outputs in eval by name
    replay: Replay | None = None  # what the backbone computed in earlier passes

    def __post_init__(self) -> None:
        self.state = ModelState(self.model)

    def run(
        self,
        batch: Batch | None = None,
        *,
        draw: int = 0,
        features: Features = "own",
        grad: bool = True,
        later: int = 0,
    ) -> Pass:
        """Run one pass.

        Gradients are recorded, so that all passes use the same kernels. Without them, a pass can
        only be compared with others without gradients.

        Args:
            later: if not zero, continue from the state that the previous pass left, with counters
                as they will be this many steps after it.
        """
        if later:
            self.state.skip_steps(later - 1)
        else:
            self.state.restore()
        seed_all(self.model, draw)
        before = random_states(self.model)
        with (
            torch.set_grad_enabled(grad),
            encoder_inputs(self.encoders, features),
            record_io(self.encoders) as calls,
        ):
            named = named_outputs((batch or self.batch).run(self.model))
        states = random_states(self.model)
        names = [name for name, _ in named]
        outputs = [t.as_subclass(Tensor) for _, t in named]
        found = Pass(names, outputs, calls, states != before, states)
        self.find_rows(found, (batch or self.batch).rows)
        return found

    def run_again(self, index: list[int], *, grad: bool = True, later: int = 0) -> Pass:
        """Run samples of the batch once more, with what the backbone has computed for them."""
        batch = select_samples(self.batch, index)
        if self.replay is None:
            return self.run(batch, grad=grad, later=later)
        with self.replay.replaying(index):
            return self.run(batch, grad=grad, later=later)

    def run_recorded(self, index: list[int] | None = None) -> Pass:
        """Run the batch or, in a later pass, these samples; keep what the backbone computes."""
        if index is None:
            self.replay = Replay(self.model, self.batch.rows)
        with self.replay.recording() if self.replay is not None else nullcontext():
            found = self.run(None if index is None else select_samples(self.batch, index))
        if found.noisy:
            self.replay = None
        elif index is not None and self.replay is not None:
            self.replay.prove(index)
        return found

    def find_rows(self, seen: Pass, samples: int) -> None:
        """Find the rows of a pass over ``samples`` samples."""
        named = list(zip(seen.names, seen.outputs, strict=True))
        found = find_rows(named, samples, self.layout)
        if not found:
            raise TypeError(
                "check(): the model returned no floating-point tensor with rows. Let it return its "
                "logits, not only the loss."
            )
        seen.row_names, seen.rows = [name for name, _ in found], [rows for _, rows in found]

    def learn_layout(self, base: Pass, larger: Pass, samples: int) -> None:
        """Find the axis that grows with the batch, and read the rows of ``base`` again."""
        sizes = (self.batch.rows, samples)
        layout = training_layout(base.names, base.outputs, larger.outputs, sizes, self.in_eval)
        if layout:
            self.layout = layout
            self.find_rows(base, self.batch.rows)


#: The input of the encoders: the model's own features; features at unit scale; or the latter with
#: those of the first sample replaced by noise of the same scale or of ten times that.
Features = Literal["own", "unit", "unit_and_noise", "unit_and_loud_noise"]
LOUD = 10.0


def at_unit_scale(x: Tensor) -> Tensor:
    x = x.detach()
    return (x - x.mean()) / (x.std() + torch.finfo(x.dtype).tiny)


@contextmanager
def encoder_inputs(encoders: Sequence[BatchFormer], features: Features) -> Iterator[None]:
    """Within the block, the encoders read these features.

    Features of an untrained network without batch statistics may be in the thousands. Attention
    then gives all weight to one sample; at unit scale every sample gets some.
    """

    def replace(module: Any, args: tuple[Tensor, ...]) -> Tensor:
        x = at_unit_scale(args[0])
        if features != "unit":
            row = x.select(module.batch_axis, 0)
            row.copy_(fixed_noise(row) * (LOUD if features == "unit_and_loud_noise" else 1.0))
        return x

    changed = [] if features == "own" else list(dict.fromkeys(encoders))
    with temporary_hooks(module.register_forward_pre_hook(replace) for module in changed):
        yield


@contextmanager
def record_io(
    encoders: Sequence[BatchFormer],
) -> Iterator[list[tuple[BatchFormer, Tensor, Tensor]]]:
    """Record the inputs and outputs of encoders, in the order of calls."""
    calls: list[tuple[BatchFormer, Tensor, Tensor]] = []

    def differentiable(module: Any, args: tuple[Any, ...]) -> Any:
        # Features of a frozen network have no gradient, which influence needs.
        x = args[0]
        return x if x.requires_grad else x.detach().requires_grad_()

    def record(module: Any, args: tuple[Any, ...], output: Tensor) -> None:
        calls.append((module, args[0], output))

    unique = dict.fromkeys(encoders)
    handles = [module.register_forward_pre_hook(differentiable) for module in unique]
    handles += [module.register_forward_hook(record) for module in unique]
    with temporary_hooks(handles):
        yield calls


# ---- Comparisons.


def moved(before: Sequence[Tensor], after: Sequence[Tensor], tolerance: float = 1e-6) -> Tensor:
    """Which rows differ by more than rounding in any of the outputs, (rows,).

    Args:
        tolerance: what counts as rounding, relative to the largest entry.
    """
    found = torch.zeros(len(before[0]), dtype=torch.bool, device="cpu")
    for old, new in zip(before, after, strict=True):
        a, b = old.detach().double().cpu(), new.detach().double().cpu()
        if a.numel():
            rounding = tolerance * max(float(a.abs().max()), 1e-12)
            found |= (a - b).abs().amax(dim=1) > rounding
    return found


def effect(before: Sequence[Tensor], after: Sequence[Tensor], sample: int) -> float | None:
    """How far a replaced sample moves other rows, relative to its own.

    It is the largest ratio over rows and outputs. None if its own row hardly moves either.
    """
    found = []
    for old, new in zip(before, after, strict=True):
        a, b = old.detach().double().cpu(), new.detach().double().cpu()
        lengths = (a - b).norm(dim=1)
        own, lengths[sample] = float(lengths[sample]), 0.0
        if own > 1e-4 * float(a.norm(dim=1).max()):
            found.append(float(lengths.max()) / own)
    return max(found, default=None)


def equal_pairs(rows: Sequence[Tensor]) -> Tensor:
    """Which rows are the same but for rounding, (rows, rows)."""
    same = torch.ones(len(rows[0]), len(rows[0]), dtype=torch.bool, device="cpu")
    for part in rows:
        x = part.detach().double().cpu()
        tolerance = max(1e-5, 4 * torch.finfo(part.dtype).eps) * max(float(x.abs().max()), 1e-12)
        same &= (x[:, None] - x[None]).abs().amax(dim=2) <= tolerance
    return same


# ---- Gradients.


def reachable(
    outputs: Sequence[Tensor], around: Sequence[Tensor] = ()
) -> dict[int, tuple[Tensor, int]]:
    """Leaves of the graph of these outputs by their id, with their distance, nearest first.

    Args:
        around: tensors through which no path may lead.
    """
    found: dict[int, tuple[Tensor, int]] = {}
    for node, distance in _graph(outputs, around):
        leaf = getattr(node, "variable", None)
        if leaf is not None:
            found.setdefault(id(leaf), (leaf, distance))
    return found


def has_reentrant_checkpoint(outputs: Sequence[Tensor]) -> bool:
    """Whether a part of the graph is in a checkpoint that does not support ``autograd.grad``."""
    return any("CheckpointFunction" in node.name() for node, _ in _graph(outputs))


def _graph(outputs: Sequence[Tensor], around: Sequence[Tensor] = ()) -> Iterator[tuple[Any, int]]:
    """The nodes of the graph of these outputs, with their distance, nearest first."""
    waiting: list[Any] = [t.grad_fn for t in outputs if t.grad_fn is not None]
    seen = {*waiting, *(t.grad_fn for t in around)}
    distance = 0
    while waiting:
        yield from ((node, distance) for node in waiting)
        following = []
        for node in waiting:
            for parent, _ in node.next_functions:
                if parent is not None and parent not in seen:
                    seen.add(parent)
                    following.append(parent)
        waiting, distance = following, distance + 1


def parameter_names(model: nn.Module) -> dict[int, str]:
    """The name of each parameter by its id."""
    return {id(parameter): name for name, parameter in model.named_parameters()}


def gradients(rows: Sequence[Tensor], targets: Sequence[Tensor]) -> list[bool]:
    """Which targets get a gradient from a squared error of these rows, (rows, features) each."""
    generator = torch.Generator().manual_seed(0)
    losses = []
    for part in rows:
        wide = part if part.dtype == torch.float64 else part.float()
        aims = fixed_noise(wide, generator) * max(float(wide.detach().std(unbiased=False)), 1e-3)
        losses.append((wide - aims).square().mean().double())
    loss = torch.stack(losses).sum() if losses else torch.zeros((), device="cpu")
    if not loss.requires_grad or not targets:
        return [False] * len(targets)
    found = gradients_of(loss, targets)
    return [gradient is not None and bool(gradient.any()) for gradient in found]


@contextmanager
def perturbed(parameter: Tensor) -> Iterator[None]:
    """Within the block, a weight is changed by a tenth of its size."""
    kept = parameter.detach().clone()
    try:
        with torch.no_grad():
            parameter.add_(0.1 * fixed_noise(parameter) * kept.abs().max())
        yield
    finally:
        with torch.no_grad():
            parameter.copy_(kept)
