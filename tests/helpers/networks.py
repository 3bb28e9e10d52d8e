"""Small networks, with batches for them, and networks without values; they need torch alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

#: A batch (7, 6) for `NormedNet`.
X = torch.randn(7, 6, generator=torch.Generator().manual_seed(0))


class NormedNet(nn.Module):
    """A norm between two places for BatchFormer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.body = nn.Linear(6, 8), nn.Linear(8, 8)
        self.norm, self.fc = nn.BatchNorm1d(8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc(self.norm(self.body(self.stem(x))).relu())
        return out


class BodyAndHead(nn.Module):
    """Two linear layers, 4 to 8 to 3 features."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.body(x))


def small_network() -> nn.Sequential:
    """Learns `three_classes` in a few steps; always the same weights."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))


def three_classes(batch_size: int = 8) -> DataLoader[Any]:
    """Batches (N, 6) of 24 samples with their labels."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(24) % 3
    x = torch.randn(24, 6, generator=generator) + 2 * F.one_hot(y, 6)
    return DataLoader(TensorDataset(x, y), batch_size=batch_size)


def evaluated(model: nn.Module) -> Tensor:
    """Logits (24, 3) of all samples of `three_classes`, in eval."""
    with torch.no_grad():
        return torch.as_tensor(model.eval()(next(iter(three_classes(24)))[0]))


def bottlenecks(num_classes: int) -> nn.Module:
    """A small ResNet of timm's whose blocks are bottlenecks."""
    from timm.models.resnet import Bottleneck, ResNet

    sizes: dict[str, Any] = {"in_chans": 1, "channels": (4, 8, 8, 8), "zero_init_last": False}
    network: nn.Module = ResNet(Bottleneck, (1, 1, 1, 1), num_classes, **sizes)
    return network


#: What gives weights their first values.
FIRST_VALUES = (
    *("uniform_", "normal_", "trunc_normal_"),
    *("kaiming_uniform_", "kaiming_normal_", "xavier_uniform_"),
)


@contextmanager
def only_built() -> Iterator[None]:
    """Within it networks have no values: drawing them takes longer than all else of a build."""
    with pytest.MonkeyPatch.context() as patch:
        for name in FIRST_VALUES:
            patch.setattr(torch.nn.init, name, lambda tensor, *_, **__: tensor)
        yield
