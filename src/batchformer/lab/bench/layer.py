"""One encoder layer and a batch for it: torch's own, and ours by any path."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, get_args

import torch
from torch import Tensor, nn

from batchformer.kernels.available import disabled, obstacle
from batchformer.nn import encoder
from batchformer.nn.attention import Path, attention, choose_path
from batchformer.nn.encoder import EncoderWeights, batch_former

HEADS, DROPOUT = 4, 0.5
#: Instead of a path, where one set of kernels computes all of the layer.
WHOLE = "kernels of a whole layer"


class Layer:
    """Forward and backward of one layer, by stock code and by ours, with the same weights.

    Args:
        n: samples N.
        channels: C.
        device: of everything.
        dtype: of everything.
    """

    def __init__(self, n: int, channels: int, device: torch.device, dtype: torch.dtype) -> None:
        layer = nn.TransformerEncoderLayer(channels, HEADS, channels, DROPOUT)
        self.stock = layer.to(device, dtype)
        draw = torch.Generator().manual_seed(0)
        x, gradient = torch.randn(2, n, channels, generator=draw).to(device, dtype)
        self.x, self.gradient = x.requires_grad_(), gradient
        self.given = [self.x, *self.stock.parameters()]
        self.width = channels // HEADS

    @functools.cached_property
    def chosen(self) -> str:
        """What batch_former does with this size, here: a path, or kernels for the whole layer."""
        with torch.no_grad(), watched(None) as calls:
            self.forward_ours()
        if not calls:
            return WHOLE
        return choose_path(
            1,
            HEADS,
            len(self.x),
            self.width,
            device=self.x.device,
            dtype=self.x.dtype,
            dropout=DROPOUT,
            kernels=obstacle(self.x) is None,
        )

    @property
    def others(self) -> list[Path]:
        """The other paths that can run here."""
        paths: tuple[Path, ...] = get_args(Path)
        kernels = obstacle(self.x) is None and self.chosen != WHOLE
        runs = [path for path in paths if path != "triton" or kernels]
        return [path for path in runs if path != self.chosen]

    def forward_stock(self) -> Tensor:
        """As the paper's code calls it: the batch as one sequence, ``(N, 1, C)``."""
        mixed: Tensor = self.stock(self.x.unsqueeze(1))
        return mixed.squeeze(1)

    def forward_ours(self) -> Tensor:
        """The same by batch_former."""
        weights = [EncoderWeights.of(self.stock)]
        return batch_former(self.x, weights, heads=HEADS, dropout=DROPOUT)

    def forward_by(self, path: Path) -> Tensor:
        """The same by batch_former, by another path than it would take."""
        with disabled() if self.chosen == WHOLE else nullcontext(), watched(path) as calls:
            mixed = self.forward_ours()
        if not calls:
            raise RuntimeError(f"batch_former does not come to choose a path, {path} or another")
        return mixed

    def with_backward(self, forward: Callable[[], Tensor]) -> tuple[Tensor, ...]:
        """The gradients of the input and of all twelve weights."""
        return torch.autograd.grad(forward(), self.given, self.gradient)


@contextmanager
def watched(path: Path | None) -> Iterator[list[Path | None]]:
    """Within it, encoder layers attend by this path, where one is given; gives a list of calls."""
    calls: list[Path | None] = []
    known = vars(encoder)
    before = known["attention"]

    def noted(*args: Any, **options: Any) -> Tensor:
        calls.append(path)
        return attention(*args, **options, path=path)

    known["attention"] = noted
    try:
        yield calls
    finally:
        known["attention"] = before
