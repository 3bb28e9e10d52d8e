"""From the features of an image to the space in which it is compared with pairs."""

from __future__ import annotations

from torch import nn


def rectified_embedder(features: int, dim: int) -> nn.Sequential:
    """Features (rows, C) to (rows, D), none below zero: CGE's on UT-Zappos."""
    return nn.Sequential(nn.Linear(features, dim), nn.ReLU())


def normalised_embedder(features: int, hidden: int, dim: int, dropout: float) -> nn.Sequential:
    """Features (rows, C) to (rows, D) by a hidden layer (rows, H) with layer norm: CompCos's.

    >>> [type(layer).__name__ for layer in normalised_embedder(512, 768, 300, 0.5)]
    ['Linear', 'LayerNorm', 'ReLU', 'Dropout', 'Linear']
    """
    return nn.Sequential(
        nn.Linear(features, hidden),
        nn.LayerNorm(hidden),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(hidden, dim),
    )
