"""What stands between features and the space in which MoCo compares them."""

from __future__ import annotations

from itertools import pairwise

from torch import nn


def projector(
    channels: int, dim: int, layers: int, hidden: int, front: bool = False
) -> nn.Sequential:
    """MoCo-v2's head: linear layers with biases, and ReLU between them.

    The same with BatchFormer and without, while the released code has the front with it alone.

    Args:
        channels: C, of the features.
        dim: D, of the outputs.
        layers: linear layers.
        hidden: channels between them.
        front: a further linear layer, of C channels and with batch normalisation, comes first.

    >>> projector(8, 2, layers=2, hidden=4)
    Sequential(
      (0): Linear(in_features=8, out_features=4, bias=True)
      (1): ReLU()
      (2): Linear(in_features=4, out_features=2, bias=True)
    )
    """
    parts: list[nn.Module] = []
    for before, after in pairwise(_widths(channels, dim, layers, hidden)):
        parts += [nn.ReLU()] if parts else []
        parts.append(nn.Linear(before, after))
    if front:
        parts = [nn.Linear(channels, channels), nn.BatchNorm1d(channels), nn.ReLU(), *parts]
    return nn.Sequential(*parts)


def normalised_projector(
    channels: int, dim: int, layers: int, hidden: int, last_norm: bool = True
) -> nn.Sequential:
    """MoCo-v3's projector: linear layers without biases, each with batch normalisation.

    ReLU follows each normalisation but the last, which has no scale and shift of its own.

    Args:
        channels: C, of the features.
        dim: D, of the outputs.
        layers: linear layers; 2 for a ResNet, 3 for a ViT.
        hidden: channels between them.
        last_norm: whether outputs are normalised too.
    """
    parts: list[nn.Module] = []
    widths = _widths(channels, dim, layers, hidden)
    for before, after in pairwise(widths[:-1]):
        parts += [nn.Linear(before, after, bias=False), nn.BatchNorm1d(after), nn.ReLU()]
    parts.append(nn.Linear(widths[-2], dim, bias=False))
    parts += [nn.BatchNorm1d(dim, affine=False)] if last_norm else []
    return nn.Sequential(*parts)


def predictor(dim: int, hidden: int) -> nn.Sequential:
    """MoCo-v3's predictor on the queries: two layers, of which the last is not normalised.

    Args:
        dim: D, of inputs and outputs.
        hidden: channels between.
    """
    return normalised_projector(dim, dim, layers=2, hidden=hidden, last_norm=False)


def _widths(channels: int, dim: int, layers: int, hidden: int) -> list[int]:
    if layers < 1:
        raise ValueError(f"A projection needs at least one linear layer, got layers={layers}.")
    return [channels, *[hidden] * (layers - 1), dim]
