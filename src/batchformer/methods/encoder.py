"""BatchFormer as a method is told to use it."""

from __future__ import annotations

from batchformer.methods.config import ModuleConfig
from batchformer.module import BatchFormer
from batchformer.randomness import drawing


def make_encoder(
    dim: int, module: ModuleConfig, seed: int, batch_axis: int = 0
) -> BatchFormer | None:
    """BatchFormer for features of `dim` channels, or None for the baseline.

    Its initial weights draw from the seed separately from the network's, so that adding it changes
    no other weight.

    Args:
        dim: C.
        module: the settings.
        seed: of the run.
        batch_axis: the axis of the samples.
    """
    if not module.enabled:
        return None
    with drawing(seed, "module weights"):
        encoder = BatchFormer(
            dim,
            module.heads,
            module.layers,
            module.dropout,
            attend=module.attend,
            batch_axis=batch_axis,
            exchange=module.exchange,
            copy_layers=module.copy_layers,
        )
    return encoder.requires_grad_(module.trained)
