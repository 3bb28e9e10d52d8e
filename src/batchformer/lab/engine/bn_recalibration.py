"""Batch-norm recalibration: measure running statistics again for the current weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from batchformer.torch_private import BatchNorm


@contextmanager
def recalibrate_norms(model: nn.Module) -> Iterator[list[BatchNorm]]:
    """Within it, running statistics become plain means over the batches that the model sees.

    Statistics kept during training weigh the last batches most and come from earlier weights.
    Layers in eval mode keep their statistics.

    Args:
        model: in training mode.

    Returns:
        The layers whose statistics are measured.
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
