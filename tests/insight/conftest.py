"""Small networks to look at, in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from batchformer.insight.relations import Relations
from batchformer.nn.module import BatchFormer

MakeRelations = Callable[..., Relations]


class Small(nn.Module):
    """A convolution, normalisation, pooling and a classifier, with BatchFormer between."""

    def __init__(self, channels: int, classes: int, **module: Any) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, channels, 3), nn.BatchNorm2d(channels)
        self.fc = nn.Linear(channels, classes)
        self.encoder = BatchFormer(channels, heads=2, **module)

    def features(self, x: Tensor) -> Tensor:
        return F.softplus(self.norm(self.conv(x))).mean((2, 3))


@pytest.fixture(scope="session")
def make_relations() -> MakeRelations:
    """Relations of a small network in eval, with random statistics, in float64."""

    def made(mixed_only: bool = False, baseline: bool = False, **module: Any) -> Relations:
        with torch.random.fork_rng():
            torch.manual_seed(3)
            network = Small(6, 4, **module).double()
            for parameter in network.encoder.parameters():
                parameter.data.add_(0.3 * torch.randn_like(parameter))
            network.norm.running_mean.normal_()  # type: ignore[union-attr]
            network.norm.running_var.uniform_(0.5, 2)  # type: ignore[union-attr]
        encoder = None if baseline else network.encoder
        parts = (network.features, network.fc, nn.CrossEntropyLoss(), encoder, mixed_only)
        return Relations(network.eval(), *parts)

    return made


@pytest.fixture(scope="session")
def images() -> tuple[Tensor, Tensor]:
    """Seven images (7, 1, 6, 6) in float64 and labels of four classes."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(7, 1, 6, 6, generator=draw, dtype=torch.float64)
    return x, torch.tensor([0, 1, 2, 3, 0, 0, 1])
