"""Classifier heads that torch lacks."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class CosineClassifier(nn.Module):
    """Cosines between features and class vectors, times a scale.

    The lengths of both are divided out, so a frequent class cannot win by a long vector alone. The
    class vectors begin as random directions of length one.

    Args:
        in_features: C.
        num_classes: K.
        scale: what cosines, within [-1, 1], are multiplied by; 1 gives the cosines themselves.

    >>> head = CosineClassifier(4, 3, scale=30.0)
    >>> head(2 * head.weight).diagonal().detach().round()  # a class's own direction
    tensor([30., 30., 30.])
    """

    def __init__(self, in_features: int, num_classes: int, scale: float = 30.0) -> None:
        super().__init__()
        self.in_features, self.out_features, self.scale = in_features, num_classes, scale
        self.weight = nn.Parameter(torch.empty(num_classes, in_features))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new class vectors: uniform in a cube, then brought to length one.

        Gradients of a direction shrink with its length, so the length matters from the start.
        """
        with torch.no_grad():
            self.weight.uniform_(-1, 1)
            self.weight.copy_(F.normalize(self.weight, dim=1))

    def forward(self, x: Tensor) -> Tensor:
        """Features (N, C) to logits (N, K); a feature of zeros has logits of zero."""
        return self.scale * F.linear(F.normalize(x, dim=-1), F.normalize(self.weight, dim=1))

    def extra_repr(self) -> str:
        """Sizes and scale, for ``print``."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"scale={self.scale:g}"
        )
