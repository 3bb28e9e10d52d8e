"""Training images as they are scored, of which some methods compute something before they train."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import Tensor, nn

from batchformer.lab.config.training import require
from batchformer.lab.engine.distributed.sharding import is_sharded

#: Outputs (N, ...) of images (N, channels, H, W).
Extract = Callable[[Tensor], Tensor]


class Bank(Protocol):
    """The training images, without augmentation; a task gives it to a method that declares it."""

    def __call__(self, extract: Extract) -> tuple[Tensor, Tensor]:
        """Features (M, C) and labels (M,), each class equally often."""

    def features(self, extract: Extract) -> Tensor:
        """Features (M, C) of all training images, each once and in order."""


def require_bank(method: nn.Module, bank: Bank | None, who: str) -> Bank:
    """The bank; refuses none, and a network of which each rank holds a part.

    Args:
        who: measures the images, for the refusal.
    """
    require(
        bank is not None,
        f"{who} measures the training images before the training, and this method was given no "
        "bank of them",
    )
    require(
        not is_sharded(method),
        f"{who} runs the whole network before the training, and this one is sharded; set "
        "train.parallel ddp",
    )
    assert bank is not None
    return bank
