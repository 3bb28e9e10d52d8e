"""Training images as they are scored, of which some methods compute something before they train."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor, nn

from batchformer.lab.config.training import require
from batchformer.lab.engine.distributed.sharding import is_sharded

#: Outputs (N, ...) of images (N, channels, H, W).
Extract = Callable[[Tensor], Tensor]
#: Scores (N, ...) of outputs (N, ...) and labels (N,).
Score = Callable[[Tensor, Tensor], Tensor]


class Bank(Protocol):
    """The training images, without augmentation; a task gives it to a method that declares it."""

    @property
    def labels(self) -> Tensor:
        """(M,) classes of the training images, in order."""

    def __call__(self, extract: Extract) -> tuple[Tensor, Tensor]:
        """Features (M, C) and labels (M,), each class equally often."""

    def features(self, extract: Extract) -> Tensor:
        """Features (M, C) of all training images, each once and in order."""

    def measure(self, extract: Extract, score: Score) -> Tensor:
        """Scores (M, ...) of the outputs of all training images, each once and in order."""

    @property
    def validation(self) -> Bank | None:
        """The images of the data's third list, which is for choosing settings; None without."""


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


@contextmanager
def as_scored(method: nn.Module) -> Iterator[None]:
    """The method in eval, without gradients; its mode is restored afterwards."""
    training = method.training
    method.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        method.train(training)


def in_own_precision(method: nn.Module, extract: Extract) -> Extract:
    """`extract` in the precision of the method's weights, whatever that of the images."""
    weight = next(method.parameters())

    def wide(x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            return extract(x.to(weight.dtype))

    return wide


def class_means(method: nn.Module, bank: Bank, extract: Extract, classes: int) -> Tensor:
    """(K, C) means over the training images of each class, of features (N, C) as at test.

    A class without images has the mean 0.
    """
    with as_scored(method):
        features = bank.features(in_own_precision(method, extract)).cpu().double()
    labels = bank.labels.cpu()
    # On the CPU the order of summation is always the same.
    sums = features.new_zeros(classes, features.shape[1]).index_add_(0, labels, features)
    return sums / labels.bincount(minlength=classes).clamp(min=1)[:, None]
