"""BatchFormer as a method is told to use it."""

from __future__ import annotations

from batchformer.methods.class_context import ClassContext
from batchformer.methods.config import ModuleConfig
from batchformer.module import BatchFormer
from batchformer.randomness import drawing


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
        if module.context == "classes":
            encoder = ClassContext(
                *sizes, attend=module.attend, classes=classes, momentum=module.context_momentum
            )
        else:
            encoder = BatchFormer(
                *sizes, attend=module.attend, batch_axis=batch_axis, exchange=module.exchange
            )
    return encoder.requires_grad_(module.trained)
