"""Batch normalisation that is frozen, computed over parts of a batch, or measured again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from batchformer.plug.insertion import ForwardMixin, add_mixin
from batchformer.torch_private import BatchNorm


class Frozen(ForwardMixin):
    """Always in eval mode: stored statistics are used and kept, also in training.

    Our kernels leave such a layer alone, as they accept only torch's own class in training mode.
    """

    def train(self, mode: bool = True) -> Any:
        return super().train(False)


def freeze_norm(network: nn.Module) -> None:
    """Freeze the statistics of every batch normalisation; scale and shift are still trained.

    Names, values and the module objects stay the same.

    >>> import torch
    >>> network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
    >>> freeze_norm(network)
    >>> _ = network.train()(torch.randn(4, 1, 8, 8))
    >>> network[1].running_mean
    tensor([0., 0.])
    """
    norms = {name: m for name, m in network.named_modules() if isinstance(m, BatchNorm)}
    if not norms:
        raise ValueError(
            f"{type(network).__name__} has no batch normalisation to freeze: set "
            "hyper.frozen-norm off."
        )
    without = [name for name, norm in norms.items() if norm.running_mean is None]
    if without:
        raise ValueError(
            f"Batch normalisation {', '.join(without)} of {type(network).__name__} keeps no "
            "statistics to normalise by: set hyper.frozen-norm off."
        )
    for norm in norms.values():
        if not isinstance(norm, Frozen):
            add_mixin(norm, Frozen)
        norm.eval()


class InParts(ForwardMixin):
    """Normalises a batch in P parts, as P devices would: row i with rows i + P, i + 2P, ... only.

    Running statistics become the mean over parts of what each part would store. Eval is unchanged.
    """

    parts: int

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, ...) to the same shape; N is a multiple of the parts."""
        norm: Any = self
        if not self.training:
            own: Tensor = super().forward(x)
            return own
        norm._check_input_dim(x)
        count, channels = self.parts, x.shape[1]
        # P consecutive rows are one row of P times the channels in memory.
        rows = x.reshape(len(x) // count, count * channels, *x.shape[2:])
        kept = [norm.running_mean, norm.running_var]
        each = mean, variance = [None if value is None else value.repeat(count) for value in kept]
        weight, bias = (None if p is None else p.repeat(count) for p in (norm.weight, norm.bias))
        share, batches = norm.momentum, norm.num_batches_tracked
        if batches is not None:
            batches.add_(1)
        if share is None:
            share = 0.0 if batches is None else 1 / float(batches)
        normal = F.batch_norm(rows, mean, variance, weight, bias, True, share, norm.eps)
        with torch.no_grad():
            for value, new in zip(kept, each, strict=True):
                if value is not None and new is not None:
                    value.copy_(new.view(count, channels).mean(0))
        return normal.reshape(x.shape)


def normalise_in_parts(network: nn.Module, parts: int) -> None:
    """Make every batch normalisation of a network normalise a batch in P parts; 1 changes nothing.

    Names, values and the module objects stay the same. Norms that are not torch's own are refused.
    """
    if parts == 1:
        return
    norms = [module for module in network.modules() if isinstance(module, BatchNorm)]
    other = [norm for norm in norms if type(norm).forward is not BatchNorm.forward]
    if other or not norms:
        found = f"has a {type(other[0]).__name__}" if other else "has no batch normalisation"
        raise ValueError(
            f"{type(network).__name__} {found}, which cannot be taken in parts: set "
            "hyper.norm-parts 1, or name a network with torch's own, such as resnet50, by --model."
        )
    for norm in norms:
        add_mixin(norm, InParts)
        norm.parts = parts  # type: ignore[assignment]


def interleave_rows(x: Tensor, parts: int) -> Tensor:
    """Reorder rows (N, ...) so that :class:`InParts` takes the first N/P of them as one part.

    >>> interleave_rows(torch.arange(6), 2)
    tensor([0, 3, 1, 4, 2, 5])
    """
    return x.view(parts, -1, *x.shape[1:]).transpose(0, 1).reshape(x.shape)


def restore_rows(rows: Tensor, parts: int) -> Tensor:
    """Undo :func:`interleave_rows`.

    >>> restore_rows(interleave_rows(torch.arange(6), 2), 2)
    tensor([0, 1, 2, 3, 4, 5])
    """
    return interleave_rows(rows, len(rows) // parts)


# Statistics measured again for the current weights.


@contextmanager
def recalibrate_norms(model: nn.Module) -> Iterator[list[BatchNorm]]:
    """Within the block, running statistics become plain means over the batches that the model sees.

    Statistics kept during training weigh the last batches most and come from earlier weights. The
    model is in training mode; layers in eval mode keep their statistics. Yields the layers that are
    measured again.
    """
    norms = [m for m in model.modules() if isinstance(m, BatchNorm) and m.training]
    norms = [norm for norm in norms if norm.num_batches_tracked is not None]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = None  # a plain mean over the batches counted
        norm.num_batches_tracked.zero_()  # type: ignore[union-attr]
    try:
        yield norms
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
