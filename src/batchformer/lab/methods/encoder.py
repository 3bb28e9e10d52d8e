"""BatchFormer as a method is told to use it."""

from __future__ import annotations

from typing import Any

from batchformer.lab.config.methods import ModuleConfig
from batchformer.lab.methods.class_context import ClassContext
from batchformer.nn.module import BatchFormer
from batchformer.nn.randomness import drawing


def make_encoder(
    dim: int, module: ModuleConfig, seed: int, batch_axis: int = 0, classes: int = 0
) -> BatchFormer | None:
    """BatchFormer for features of `dim` channels, or None for the baseline.

    Its initial weights draw from the seed separately from the network's, so that adding it changes
    no other weight.

    Args:
        dim: C.
        module: the settings.
        seed: of the run.
        batch_axis: the axis of the samples.
        classes: K, which ``module.context`` "classes" needs.
    """
    if not module.enabled:
        return None
    sizes = (dim, module.heads, module.layers, module.dropout)
    with drawing(seed, "module weights"):
        encoder: BatchFormer
        options: dict[str, Any] = {"attend": module.attend, "copy_layers": module.copy_layers}
        if module.context == "classes":
            momentum = module.context_momentum
            encoder = ClassContext(*sizes, classes=classes, momentum=momentum, **options)
        else:
            exchange = module.exchange
            encoder = BatchFormer(*sizes, batch_axis=batch_axis, exchange=exchange, **options)
    return encoder.requires_grad_(module.trained)
