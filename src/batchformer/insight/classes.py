"""Classes in groups: neighbours in training count, and shots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from batchformer.insight.record import MOST_BINS, SHOTS
from batchformer.lab.metrics.shots import shot_groups, third_groups


@dataclass(frozen=True, eq=False)
class Classes:
    """K classes.

    Args:
        names: K.
        train_counts: (K,) int64 training images.
        shot_of_class: (K,) int64: 0 many, 1 medium, 2 few.
    """

    names: tuple[str, ...]
    train_counts: Tensor
    shot_of_class: Tensor

    @classmethod
    def by_shots(
        cls,
        names: Sequence[str],
        train_counts: Tensor,
        shots: Literal["counts", "thirds"] = "counts",
    ) -> Classes:
        """K classes with their training images (K,), grouped as scores group them."""
        groups = third_groups(train_counts) if shots == "thirds" else shot_groups(train_counts)
        return cls(tuple(names), train_counts, shots_of(groups))

    def __len__(self) -> int:
        return len(self.names)

    @property
    def bins(self) -> int:
        """P."""
        return min(len(self), MOST_BINS)

    @property
    def bin_of_class(self) -> Tensor:
        """(K,) int64 from 0, the bin of the most frequent."""
        return bins_of(self.train_counts)


def bins_of(train_counts: Tensor, most: int = MOST_BINS) -> Tensor:
    """(K,) int64: bins of neighbours in training count, from 0, the most frequent.

    Bins differ by one class at most; classes of one count are ordered by label.

    >>> bins_of(torch.tensor([5, 90, 20, 1]), most=2)
    tensor([1, 0, 0, 1])
    """
    classes = len(train_counts)
    order = train_counts.cpu().sort(descending=True, stable=True).indices
    bins = torch.empty(classes, dtype=torch.int64)
    bins[order] = torch.arange(classes) * min(classes, most) // classes
    return bins


def shots_of(groups: Mapping[str, Tensor]) -> Tensor:
    """(K,) int64 0, 1 or 2, of masks (K,) of the classes of many, medium and few shots."""
    masks = torch.stack([groups[name] for name in SHOTS]).cpu()
    if not bool((masks.sum(0) == 1).all()):
        raise ValueError("shots_of needs every class in exactly one of many, medium and few")
    return masks.int().argmax(0)
