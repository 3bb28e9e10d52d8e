"""The projection in which contrastive methods compare samples."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F


class Projection(nn.Module):
    """Two linear layers with batch normalisation and ReLU between; outputs have length one.

    Args:
        in_features: C, also the width of the hidden layer.
        dim: D, channels of the output.
    """

    def __init__(self, in_features: int, dim: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(in_features, in_features)
        self.norm = nn.BatchNorm1d(in_features)
        self.output = nn.Linear(in_features, dim)

    def forward(self, x: Tensor) -> Tensor:
        """Features (N, C) to directions (N, D)."""
        return F.normalize(self.output(F.relu(self.norm(self.hidden(x)))), dim=1)
