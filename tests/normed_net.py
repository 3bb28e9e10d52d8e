"""A network with a norm between two places for BatchFormer, and a batch for it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

X = torch.randn(7, 6, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.body = nn.Linear(6, 8), nn.Linear(8, 8)
        self.norm, self.fc = nn.BatchNorm1d(8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc(self.norm(self.body(self.stem(x))).relu())
        return out
