"""What keeps ranks in step: sums and means over them, gradients, and the state of rank 0."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from batchformer.nn.exchange import add_up_, from_first_, largest_, ranks, summed, uncompiled


@uncompiled
def sum_of_ranks(x: Tensor) -> Tensor:
    """The sum over ranks of tensors of one shape, with gradients; ``x`` itself on one rank.

    Every rank calls it, and its backward pass is a collective too: as for
    :func:`~batchformer.nn.exchange.gather_rows`, the gradient is the *sum* over the losses of all
    ranks.
    """
    if ranks() == 1:
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
    return x if ranks() == 1 else summed(x) / ranks()


@torch.no_grad()
def average_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Let every parameter have the mean over ranks of its gradient.

    One that a rank has no gradient for counts as zero there; one that no rank has a gradient for
    keeps none. Every rank calls it with the same parameters.
    """
    kept = list(parameters)
    if ranks() == 1 or not kept:
        return
    had = torch.tensor([p.grad is not None for p in kept], dtype=torch.int32)
    had = had.to(kept[0].device)
    largest_(had)
    by_kind: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for parameter, somewhere in zip(kept, had.tolist(), strict=True):
        if somewhere:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            gradient = parameter.grad
            by_kind.setdefault((gradient.device, gradient.dtype), []).append(gradient)
    for gradients in by_kind.values():
        # Divided first, as DDP does: the sum has its bits.
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients]) / ranks()
        add_up_(flat)
        for gradient, mean in zip(
            gradients, torch.split(flat, [g.numel() for g in gradients]), strict=True
        ):
            gradient.copy_(mean.view(gradient.shape))


@torch.no_grad()
def take_from_first(tensors: Iterable[Tensor]) -> None:
    """Give tensors, of one shape and type on all ranks, the values that rank 0 has for them."""
    by_device: dict[torch.device, list[Tensor]] = {}
    for tensor in tensors:
        by_device.setdefault(tensor.device, []).append(tensor.detach())
    for device, own in by_device.items() if ranks() > 1 else ():
        # One message of bytes: what is sent one by one takes as many round trips.
        flat = torch.cat([t.reshape(-1).view(torch.uint8) for t in own]).to(device)
        from_first_(flat)
        sizes = [t.numel() * t.element_size() for t in own]
        for tensor, part in zip(own, torch.split(flat, sizes), strict=True):
            # A copy begins at an address where any type may begin.
            tensor.copy_(part.clone().view(tensor.dtype).view(tensor.shape))
