"""An invertible network of feature vectors: channel scales, linear maps and affine couplings.

IZF (Shen et al., 2020) has permutations and affine couplings; their sizes and initial weights are
not known. As in a later implementation there are five blocks, each with a scale of every channel, a
linear map in place of the permutation, and a coupling. Coupling networks have one hidden layer of
2,048 and leaky ReLUs, as those of another flow on the same features. Our choice: each map starts as
nearly a permutation, couplings are of two halves, and logarithms of scales are bounded by a tanh.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from batchformer.lab.models.generator import SLOPE

#: Standard deviation of initial weights; biases start at 0, so that a coupling starts as nearly
#: the identity.
DEVIATION = 0.01
#: Standard deviation of the linear maps' initial matrices around the identity.
NEAR_IDENTITY = 1e-3
#: Least standard deviation by which a channel is divided at the start.
LEAST = 1e-2


class ChannelScale(nn.Module):
    """``(x - shift) * exp(log_scale)`` for each channel, learned."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(channels))
        self.log_scale = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(N, D) to (N, D), and log |det| (N,)."""
        return (x - self.shift) * self.log_scale.exp(), self.log_scale.sum().expand(len(x))

    def inverse(self, y: Tensor) -> Tensor:
        """(N, D) back to (N, D)."""
        return y * (-self.log_scale).exp() + self.shift


class LinearMap(nn.Module):
    """A permutation, then a learned matrix ``L U`` with a determinant above 0.

    L is lower triangular with a diagonal of 1, U is upper triangular with a diagonal above 0. Both
    start as nearly the identity. One matrix of parameters holds both: L below its diagonal, U above
    it, and on it the logarithms of U's diagonal.
    """

    order: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.register_buffer("order", torch.randperm(channels))
        self.matrix = nn.Parameter(NEAR_IDENTITY * torch.randn(channels, channels))

    def triangles(self) -> tuple[Tensor, Tensor]:
        """L and U (D, D)."""
        diagonal = self.matrix.diagonal()
        lower = self.matrix.tril(-1) + torch.ones_like(diagonal).diag()
        return lower, self.matrix.triu(1) + diagonal.exp().diag()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(N, D) to (N, D), and log |det| (N,)."""
        lower, upper = self.triangles()
        y = x.index_select(1, self.order) @ upper.T @ lower.T
        return y, self.matrix.diagonal().sum().expand(len(x))

    def inverse(self, y: Tensor) -> Tensor:
        """(N, D) back to (N, D)."""
        lower, upper = self.triangles()
        solve = torch.linalg.solve_triangular
        x: Tensor = solve(lower.T, y, upper=True, left=False, unitriangular=True)
        x = solve(upper.T, x, upper=False, left=False)
        return x.index_select(1, self.order.argsort())


class Coupling(nn.Module):
    """The first half of the channels scales and shifts the second, and stays as it is."""

    def __init__(self, channels: int, hidden: int) -> None:
        super().__init__()
        self.first = channels // 2
        self.hidden = nn.Linear(self.first, hidden)
        self.output = nn.Linear(hidden, 2 * (channels - self.first))
        for layer in (self.hidden, self.output):
            nn.init.normal_(layer.weight, std=DEVIATION)
            nn.init.zeros_(layer.bias)

    def terms(self, first: Tensor) -> tuple[Tensor, Tensor]:
        """Logarithms of scales, in (-1, 1), and shifts of the second half, from the first."""
        hidden = F.leaky_relu(self.hidden(first), SLOPE)
        log_scale, shift = self.output(hidden).chunk(2, dim=1)
        return log_scale.tanh(), shift

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(N, D) to (N, D), and log |det| (N,)."""
        first, second = x.tensor_split((self.first,), dim=1)
        log_scale, shift = self.terms(first)
        return torch.cat((first, second * log_scale.exp() + shift), dim=1), log_scale.sum(1)

    def inverse(self, y: Tensor) -> Tensor:
        """(N, D) back to (N, D)."""
        first, second = y.tensor_split((self.first,), dim=1)
        log_scale, shift = self.terms(first)
        return torch.cat((first, (second - shift) * (-log_scale).exp()), dim=1)


class Flow(nn.Module):
    """Blocks of channel scales, a linear map and a coupling, one after the other.

    Computed in float32 or wider, also under autocast: rounding adds up over the blocks.
    """

    def __init__(self, channels: int, hidden: int, blocks: int) -> None:
        super().__init__()
        if channels < 2:
            raise ValueError(f"Flow: a coupling needs two channels or more, got {channels}.")
        self.layers = nn.ModuleList()
        for _ in range(blocks):
            self.layers.append(ChannelScale(channels))
            self.layers.append(LinearMap(channels))
            self.layers.append(Coupling(channels, hidden))

    @torch.no_grad()
    def standardise(self, features: Tensor) -> None:
        """Set the first channel scales to give these features (M, D) mean 0 and variance 1."""
        first: ChannelScale = self.layers[0]  # type: ignore[assignment]
        first.shift.copy_(features.mean(0))
        first.log_scale.copy_(-features.std(0, correction=0).clamp(min=LEAST).log())

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(N, D) to (N, D), and log |det| of the Jacobian at each row (N,)."""
        y = x.to(torch.promote_types(x.dtype, torch.float32))
        total = y.new_zeros(len(y))
        with torch.autocast(x.device.type, enabled=False):
            for layer in self.layers:
                y, log_det = layer(y)
                total = total + log_det
        return y, total

    def inverse(self, y: Tensor) -> Tensor:
        """(N, D) back to (N, D)."""
        x = y.to(torch.promote_types(y.dtype, torch.float32))
        with torch.autocast(y.device.type, enabled=False):
            for layer in reversed(self.layers):
                x = layer.inverse(x)  # type: ignore[operator]
        return x
