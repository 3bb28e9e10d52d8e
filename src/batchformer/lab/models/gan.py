"""Features made from attributes and noise, and a critic that tells them from real ones."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

#: Of the normal distribution that weights begin with; biases begin at 0.
DEVIATION = 0.02
#: Of the leaky rectifiers.
SLOPE = 0.2

M = TypeVar("M", bound=nn.Module)


def with_small_weights(module: M) -> M:
    """Draw the weights of every linear layer from N(0, 0.02^2) and set its biases to 0."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=DEVIATION)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return module


class Generator(nn.Module):
    """Noise and attributes to features, through one hidden layer.

    Args:
        attributes: A.
        noise: Z.
        hidden: channels of the hidden layer.
        features: D.
    """

    def __init__(self, attributes: int, noise: int, hidden: int, features: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(noise + attributes, hidden)
        self.output = nn.Linear(hidden, features)
        with_small_weights(self)

    def forward(self, noise: Tensor, attributes: Tensor) -> Tensor:
        """(N, Z) and (N, A) to features (N, D), none below 0."""
        hidden = F.leaky_relu(self.hidden(torch.cat((noise, attributes), dim=1)), SLOPE)
        return F.relu(self.output(hidden))


class Critic(nn.Module):
    """How real features are, given the attributes of their class; unbounded.

    Args:
        features: D.
        attributes: A.
        hidden: channels of the hidden layer.
    """

    def __init__(self, features: int, attributes: int, hidden: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(features + attributes, hidden)
        self.output = nn.Linear(hidden, 1)
        with_small_weights(self)

    def forward(self, features: Tensor, attributes: Tensor) -> Tensor:
        """(N, D) and (N, A) to scores (N,)."""
        hidden = F.leaky_relu(self.hidden(torch.cat((features, attributes), dim=1)), SLOPE)
        scores: Tensor = self.output(hidden).squeeze(1)
        return scores
