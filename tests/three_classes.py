"""What tests of adapters share: three classes that a small network learns in a few steps."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))


def data(batch_size: int = 8) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(24) % 3
    x = torch.randn(24, 6, generator=generator) + 2 * F.one_hot(y, 6)
    return DataLoader(TensorDataset(x, y), batch_size=batch_size)


def evaluated(model: nn.Module) -> Tensor:
    """Logits (24, 3) of all samples, in eval."""
    with torch.no_grad():
        return torch.as_tensor(model.eval()(next(iter(data(24)))[0]))
