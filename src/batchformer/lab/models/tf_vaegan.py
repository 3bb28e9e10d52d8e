"""The networks of TF-VAEGAN (Narayan et al., 2020), with the sizes of the released code.

All hidden layers have leaky ReLUs; the critic is that of ``models/generator.py``.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from batchformer.lab.models.generator import SLOPE, Generator, with_small_weights


class Posterior(nn.Module):
    """The VAE's encoder: the noise that features may have been generated from."""

    def __init__(self, features: int, attributes: int, hidden: int, noise: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(features + attributes, hidden)
        self.narrow = nn.Linear(hidden, 2 * noise)
        self.mean = nn.Linear(2 * noise, noise)
        self.log_variance = nn.Linear(2 * noise, noise)
        with_small_weights(self)

    def forward(self, features: Tensor, attributes: Tensor) -> tuple[Tensor, Tensor]:
        """(N, D) and (N, A) to mean and log variance (N, Z) of the noise."""
        hidden = F.leaky_relu(self.hidden(torch.cat((features, attributes), dim=1)), SLOPE)
        narrow = F.leaky_relu(self.narrow(hidden), SLOPE)
        return self.mean(narrow), self.log_variance(narrow)


class FeedbackGenerator(Generator):
    """Noise and attributes to features, with feedback added to the hidden layer."""

    def forward(self, noise: Tensor, attributes: Tensor, fed_back: Tensor | None = None) -> Tensor:
        """(N, Z), (N, A) and (N, H) to features (N, D) in (0, 1)."""
        hidden = F.leaky_relu(self.hidden(torch.cat((noise, attributes), dim=1)), SLOPE)
        return torch.sigmoid(self.output(hidden if fed_back is None else hidden + fed_back))


class SemanticDecoder(nn.Module):
    """Features to the attributes of their class, of length one."""

    def __init__(self, features: int, hidden: int, attributes: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(features, hidden)
        self.output = nn.Linear(hidden, attributes)
        with_small_weights(self)

    def embed(self, features: Tensor) -> Tensor:
        """(N, D) to the hidden layer h (N, H)."""
        return F.leaky_relu(self.hidden(features), SLOPE)

    def decode(self, h: Tensor) -> Tensor:
        """h (N, H) to attributes (N, A)."""
        return F.normalize(self.output(h), dim=1)

    def forward(self, features: Tensor) -> Tensor:
        """(N, D) to attributes (N, A)."""
        return self.decode(self.embed(features))


class Feedback(nn.Module):
    """The decoder's hidden layer to the feedback that the generator's hidden layer gets."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(hidden, hidden)
        self.output = nn.Linear(hidden, hidden)
        with_small_weights(self)

    def forward(self, h: Tensor) -> Tensor:
        """(N, H) to (N, H)."""
        return F.leaky_relu(self.output(F.leaky_relu(self.hidden(h), SLOPE)), SLOPE)


class WithDecoded(nn.Module):
    """Appends the decoder's attributes and hidden layer to features: [x, attributes, h]."""

    def __init__(self, decoder: SemanticDecoder) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, features: Tensor) -> Tensor:
        """(N, D) to (N, D + A + H)."""
        h = self.decoder.embed(features)
        return torch.cat((features, self.decoder.decode(h), h), dim=1)
