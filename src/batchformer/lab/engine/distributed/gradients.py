"""Sums and means over ranks, and gradients averaged before an optimizer uses them.

The loss of a rank is weighted by its rows times the number of ranks over the rows of all ranks. So
the mean of the gradients over ranks is that of the mean loss over all rows, however many rows each
rank has.

Where an optimizer holds exactly the parameters of the module that is stepped,
``DistributedDataParallel`` averages during the backward pass. Other methods (several optimizers,
frozen parts, gradients set by hand) are averaged after it; a hook of every optimizer ensures that
none steps with the gradients of one rank alone.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from batchformer.lab.config.training import require
from batchformer.lab.engine.optim import parameters_of
from batchformer.nn.exchange import (
    all_reduce_,
    all_reduce_max_,
    broadcast_,
    summed,
    total_rows,
    world_size,
)
from batchformer.torch_private import COMPILED_FUNCTION, uncompiled


@uncompiled
def sum_over_ranks(x: Tensor) -> Tensor:
    """The sum over ranks of tensors of one shape, with gradients; ``x`` itself on one rank.

    Every rank calls it, and its backward pass is a collective too: as for
    :func:`~batchformer.nn.exchange.gather_rows`, the gradient is the *sum* over the losses of all
    ranks.
    """
    if world_size() == 1:
        return x
    total: Tensor = _SumOfRanks.apply(x)
    return total


class _SumOfRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return summed(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return summed(gradient)


@torch.no_grad()
def mean_over_ranks(x: Tensor) -> Tensor:
    """The mean over ranks of tensors of one shape, without gradients; ``x`` itself on one rank."""
    return x if world_size() == 1 else summed(x) / world_size()


@torch.no_grad()
def average_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Replace the gradient of every parameter by its mean over ranks.

    A gradient that is None on some ranks counts as zero there; one that is None on all ranks stays
    None. Every rank calls it with the same parameters.
    """
    parameters = list(parameters)
    if world_size() == 1 or not parameters:
        return
    present = torch.tensor([p.grad is not None for p in parameters], dtype=torch.int32)
    present = present.to(parameters[0].device)
    all_reduce_max_(present)
    by_kind: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for parameter, somewhere in zip(parameters, present.tolist(), strict=True):
        if somewhere:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            gradient = parameter.grad
            by_kind.setdefault((gradient.device, gradient.dtype), []).append(gradient)
    for gradients in by_kind.values():
        # Divided first, as DDP does, so that both give the same bits.
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients]) / world_size()
        all_reduce_(flat)
        for gradient, mean in zip(
            gradients, torch.split(flat, [g.numel() for g in gradients]), strict=True
        ):
            gradient.copy_(mean.view(gradient.shape))


@torch.no_grad()
def broadcast_state(tensors: Iterable[Tensor]) -> None:
    """Copy the values of rank 0 into tensors that have the same shapes and types on all ranks."""
    by_device: dict[torch.device, list[Tensor]] = {}
    for tensor in tensors:
        by_device.setdefault(tensor.device, []).append(tensor.detach())
    for device, own in by_device.items() if world_size() > 1 else ():
        # One message of bytes, instead of a round trip for each tensor.
        flat = torch.cat([t.reshape(-1).view(torch.uint8) for t in own]).to(device)
        broadcast_(flat)
        sizes = [t.numel() * t.element_size() for t in own]
        for tensor, part in zip(own, torch.split(flat, sizes), strict=True):
            # A copy is aligned for any type.
            tensor.copy_(part.clone().view(tensor.dtype).view(tensor.shape))


Step = Callable[[Any], dict[str, Tensor]]

#: DDP must not broadcast buffers in a forward pass; versions of torch name the option differently.
_SYNC = inspect.signature(DistributedDataParallel.__init__).parameters
_OWN_BUFFERS: dict[str, Any] = {
    "forward_sync_buffers" if "forward_sync_buffers" in _SYNC else "broadcast_buffers": False
}


class Parallel:
    """Averages gradients for the optimizers of a training.

    Args:
        optimizers: all of them; each is given a hook.
        sharded: FSDP shards the parameters and averages their gradients itself.
    """

    def __init__(self, optimizers: Collection[Optimizer], sharded: bool = False) -> None:
        require(
            not sharded or len(optimizers) <= 1,
            "train.parallel fsdp is for methods with one optimizer, and this one has "
            f"{len(optimizers)}; set train.parallel ddp",
        )
        self.sharded = sharded
        self.phase: Hashable = None
        self._wrapped: dict[tuple[int, int], DistributedDataParallel] = {}
        self._averaged: set[int] = set()
        self._by_ddp = False
        for optimizer in optimizers:
            optimizer.register_step_pre_hook(self._before_step)

    def enter(self, phase: Hashable) -> None:
        """Enter a phase of the method; each phase may have gradients for other parameters."""
        if phase != self.phase:
            self.phase = phase
            self._wrapped.clear()

    def weight(self, batch: Mapping[str, Any]) -> Tensor:
        """The weight of this rank's loss, 0-d float64; 1 if all ranks have equally many rows."""
        first = next(value for value in batch.values() if isinstance(value, Tensor))
        return len(first) * world_size() / total_rows(len(first), first.device).double()

    @contextmanager
    def part(self, step: Step, optimizer: Optimizer, last: bool) -> Iterator[Step]:
        """The step for one part of a batch; run its backward pass within the context too.

        Args:
            last: whether this is the last part, after which gradients are exchanged.
        """
        wrapped = self._wrapped.get((id(_owner(step)), id(optimizer)))
        self._by_ddp = wrapped is not None
        if wrapped is None:
            yield step
            return
        with nullcontext() if last else wrapped.no_sync():
            yield lambda batch: wrapped(step, batch)

    def finish(self, step: Step, optimizer: Optimizer) -> None:
        """After the backward passes of all parts: average the gradients if DDP has not."""
        owner = _owner(step)
        if not self._by_ddp and not self.sharded:
            # The first update shows whether DDP must look for parameters without gradients.
            self._wrap(owner, optimizer)
            average_gradients(parameters_of(optimizer))
        self._averaged.add(id(optimizer))

    def _wrap(self, owner: nn.Module | None, optimizer: Optimizer) -> None:
        held = parameters_of(optimizer)
        if owner is None or {id(p) for p in held} != {
            id(p) for p in owner.parameters() if p.requires_grad
        }:
            return
        unused = any(p.grad is None for p in held)
        self._wrapped[id(owner), id(optimizer)] = DistributedDataParallel(
            StepModule(owner), find_unused_parameters=unused, **_OWN_BUFFERS
        )

    def _before_step(self, optimizer: Optimizer, *_: Any) -> None:
        if id(optimizer) in self._averaged:
            self._averaged.discard(id(optimizer))
        elif not self.sharded:
            average_gradients(parameters_of(optimizer))


class StepModule(nn.Module):
    """A module whose forward pass is the step of a method; DDP needs one."""

    def __init__(self, method: nn.Module) -> None:
        super().__init__()
        self.method = method

    def forward(self, step: Step, batch: Any) -> dict[str, Tensor]:
        """The losses of a batch."""
        return step(batch)


def _owner(step: Step) -> nn.Module | None:
    """The module that a step is a bound method of; also for a compiled step."""
    plain = getattr(step, COMPILED_FUNCTION, step)
    owner = getattr(plain, "__self__", None)
    return owner if isinstance(owner, nn.Module) else None
