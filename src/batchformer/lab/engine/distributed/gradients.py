"""Sums and means over ranks, and gradients of several ranks as those of one."""

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
from batchformer.nn.exchange import (
    all_reduce_,
    all_reduce_max_,
    broadcast_,
    summed,
    total_rows,
    uncompiled,
    world_size,
)

# What keeps ranks in step: sums and means over them, gradients, and the state of rank 0.


@uncompiled
def sum_of_ranks(x: Tensor) -> Tensor:
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
def mean_of_ranks(x: Tensor) -> Tensor:
    """The mean over ranks of tensors of one shape, without gradients; ``x`` itself on one rank."""
    return x if world_size() == 1 else summed(x) / world_size()


@torch.no_grad()
def average_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Let every parameter have the mean over ranks of its gradient.

    One that a rank has no gradient for counts as zero there; one that no rank has a gradient for
    keeps none. Every rank calls it with the same parameters.
    """
    kept = list(parameters)
    if world_size() == 1 or not kept:
        return
    had = torch.tensor([p.grad is not None for p in kept], dtype=torch.int32)
    had = had.to(kept[0].device)
    all_reduce_max_(had)
    by_kind: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for parameter, somewhere in zip(kept, had.tolist(), strict=True):
        if somewhere:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            gradient = parameter.grad
            by_kind.setdefault((gradient.device, gradient.dtype), []).append(gradient)
    for gradients in by_kind.values():
        # Divided first, as DDP does: the sum has its bits.
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients]) / world_size()
        all_reduce_(flat)
        for gradient, mean in zip(
            gradients, torch.split(flat, [g.numel() for g in gradients]), strict=True
        ):
            gradient.copy_(mean.view(gradient.shape))


@torch.no_grad()
def broadcast_state(tensors: Iterable[Tensor]) -> None:
    """Give tensors, of one shape and type on all ranks, the values that rank 0 has for them."""
    by_device: dict[torch.device, list[Tensor]] = {}
    for tensor in tensors:
        by_device.setdefault(tensor.device, []).append(tensor.detach())
    for device, own in by_device.items() if world_size() > 1 else ():
        # One message of bytes: what is sent one by one takes as many round trips.
        flat = torch.cat([t.reshape(-1).view(torch.uint8) for t in own]).to(device)
        broadcast_(flat)
        sizes = [t.numel() * t.element_size() for t in own]
        for tensor, part in zip(own, torch.split(flat, sizes), strict=True):
            # A copy begins at an address where any type may begin.
            tensor.copy_(part.clone().view(tensor.dtype).view(tensor.shape))


# Gradients of several ranks as those of one: averaged before an optimizer uses them.
#
# The loss of a rank counts as its rows times the ranks over the rows of all, so that the mean of
# the gradients is that of the mean over all rows, however many each rank has.
#
# Where an optimizer holds just the parameters of what is stepped, ``DistributedDataParallel``
# averages while the backward pass still goes. Where a method has updates of its own (several
# optimizers, parts that are held fixed, gradients that are set by hand), they are averaged after
# it; a hook of every optimizer sees to it that none steps without.

Step = Callable[[Any], dict[str, Tensor]]

#: Buffers stay each rank's own in a forward pass; the word for it changes with the version.
_SYNC = inspect.signature(DistributedDataParallel.__init__).parameters
_OWN_BUFFERS: dict[str, Any] = {
    "forward_sync_buffers" if "forward_sync_buffers" in _SYNC else "broadcast_buffers": False
}


class Parallel:
    """Averages gradients for the optimizers of one stage.

    Args:
        optimizers: all of them; each is given a hook.
        sharded: parameters are dealt out to ranks, which average what they keep.
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
        """Which parameters have a gradient may change with the phase of a method."""
        if phase != self.phase:
            self.phase = phase
            self._wrapped.clear()

    def weight(self, batch: Mapping[str, Any]) -> Tensor:
        """What the loss of this rank counts, 0-d float64; 1 where all have as many rows."""
        rows, device = _rows(batch)
        return rows * world_size() / total_rows(rows, device).double()

    @contextmanager
    def part(self, step: Step, optimizer: Optimizer, last: bool) -> Iterator[Step]:
        """The step for one part of a batch, whose backward pass comes within it as well.

        Args:
            step: of the method.
            optimizer: that will be stepped.
            last: whether it is the last part: gradients are exchanged once.
        """
        wrapped = self._wrapped.get((id(_owner(step)), id(optimizer)))
        self._by_ddp = wrapped is not None
        if wrapped is None:
            yield step
            return
        with nullcontext() if last else wrapped.no_sync():
            yield lambda batch: wrapped(step, batch)

    def finish(self, step: Step, optimizer: Optimizer) -> None:
        """After the backward passes of all parts: gradients are those of all ranks."""
        owner = _owner(step)
        if not self._by_ddp and not self.sharded:
            # What had no gradient in the first update tells whether DDP has to look for such.
            self._wrap(owner, optimizer)
            average_gradients(_parameters(optimizer))
        self._averaged.add(id(optimizer))

    def _wrap(self, owner: nn.Module | None, optimizer: Optimizer) -> None:
        held = _parameters(optimizer)
        if owner is None or {id(p) for p in held} != {
            id(p) for p in owner.parameters() if p.requires_grad
        }:
            return
        unused = any(p.grad is None for p in held)
        self._wrapped[id(owner), id(optimizer)] = DistributedDataParallel(
            Stepped(owner), find_unused_parameters=unused, **_OWN_BUFFERS
        )

    def _before_step(self, optimizer: Optimizer, *_: Any) -> None:
        if id(optimizer) in self._averaged:
            self._averaged.discard(id(optimizer))
        elif not self.sharded:
            average_gradients(_parameters(optimizer))


class Stepped(nn.Module):
    """A method whose forward pass is its step, as DDP needs it."""

    def __init__(self, method: nn.Module) -> None:
        super().__init__()
        self.method = method

    def forward(self, step: Step, batch: Any) -> dict[str, Tensor]:
        """The losses of a batch."""
        return step(batch)


def _owner(step: Step) -> nn.Module | None:
    """The module whose method a step is, compiled or not."""
    plain = getattr(step, "_torchdynamo_orig_callable", step)
    owner = getattr(plain, "__self__", None)
    return owner if isinstance(owner, nn.Module) else None


def _parameters(optimizer: Optimizer) -> list[nn.Parameter]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _rows(batch: Mapping[str, Any]) -> tuple[int, Any]:
    first = next(value for value in batch.values() if isinstance(value, Tensor))
    return len(first), first.device
