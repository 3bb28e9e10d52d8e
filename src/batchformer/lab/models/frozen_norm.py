"""Batch normalisation by the statistics that a network came with."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from batchformer.plug.insertion import Swapped, swap


class Frozen(Swapped):
    """In eval for good: in training, too, stored statistics normalise and stay as they are.

    Kernels that normalise by the batch take modules of torch's own class in training, and these
    are neither.
    """

    def train(self, mode: bool = True) -> Any:
        return super().train(False)


def freeze_norm(network: nn.Module) -> None:
    """Keep the statistics of every batch normalisation; scale and shift go on to be trained.

    Names, values and the objects themselves stay as they are.

    Args:
        network: is changed in place.

    >>> import torch
    >>> network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
    >>> freeze_norm(network)
    >>> _ = network.train()(torch.randn(4, 1, 8, 8))
    >>> network[1].running_mean
    tensor([0., 0.])
    """
    norms = {name: m for name, m in network.named_modules() if isinstance(m, _BatchNorm)}
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
            swap(norm, Frozen)
        norm.eval()
