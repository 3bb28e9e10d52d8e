"""Groups of classes: bins of similar training count, and shots (many, medium, few)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from batchformer.insight.record import MOST_BINS, SHOTS

#: How groups are made: by the limits of :func:`shot_groups`, or by :func:`third_groups`.
Shots = Literal["counts", "thirds"]


@dataclass(frozen=True, eq=False)
class Classes:
    """K classes."""

    names: tuple[str, ...]
    train_counts: Tensor  # (K,) int64 training images
    shot_of_class: Tensor  # (K,) int64: 0 many, 1 medium, 2 few

    @classmethod
    def by_shots(
        cls, names: Sequence[str], train_counts: Tensor, shots: Shots = "counts"
    ) -> Classes:
        """K classes with their training images (K,), in the shot groups that scores use."""
        return cls(tuple(names), train_counts, shots_of(train_counts, shots))

    def __len__(self) -> int:
        return len(self.names)

    @property
    def bins(self) -> int:
        """P, how many bins there are."""
        return min(len(self), MOST_BINS)

    @property
    def bin_of_class(self) -> Tensor:
        """The bin of each class, (K,) int64; 0 has the most frequent."""
        return bins_of(self.train_counts)


def bins_of(train_counts: Tensor, most: int = MOST_BINS) -> Tensor:
    """The bin of each class, (K,) int64: classes of similar training count, 0 the most frequent.

    Bins differ by one class at most; classes of equal count are ordered by label.

    >>> bins_of(torch.tensor([5, 90, 20, 1]), most=2)
    tensor([1, 0, 0, 1])
    """
    classes = len(train_counts)
    order = train_counts.cpu().sort(descending=True, stable=True).indices
    bins = torch.empty(classes, dtype=torch.int64)
    bins[order] = torch.arange(classes) * min(classes, most) // classes
    return bins


def shots_of(train_counts: Tensor | Sequence[int], shots: Shots = "counts") -> Tensor:
    """The shot group of each class, (K,) int64 on the CPU: 0 many, 1 medium, 2 few."""
    groups = third_groups(train_counts) if shots == "thirds" else shot_groups(train_counts)
    return torch.stack([groups[name] for name in SHOTS]).cpu().int().argmax(0)


def shot_groups(train_counts: Tensor | Sequence[int]) -> dict[str, Tensor]:
    """Masks (K,) of the classes by training count: many > 100, medium 20..100, few < 20.

    ``train_counts`` is (K,). Both ends of medium are inclusive. Every class is in one group; a
    group may be empty.

    >>> {name: mask.tolist() for name, mask in shot_groups([101, 100, 19]).items()}
    {'many': [True, False, False], 'medium': [False, True, False], 'few': [False, False, True]}
    """
    counts = _counts(train_counts)
    medium = (counts >= 20) & (counts <= 100)
    return {"many": counts > 100, "medium": medium, "few": counts < 20}


def third_groups(train_counts: Tensor | Sequence[int]) -> dict[str, Tensor]:
    """Masks (K,) of the most, middle and least frequent third of the classes.

    For data sets too small for the limits of ``shot_groups``: the names are the same, the
    meaning is relative, so results are not comparable with those of ``shot_groups``. Classes of
    equal count are ordered by label; left-over classes go to the more frequent groups.

    >>> {name: mask.tolist() for name, mask in third_groups([5, 9, 1]).items()}
    {'many': [False, True, False], 'medium': [True, False, False], 'few': [False, False, True]}
    """
    counts = _counts(train_counts)
    order = counts.sort(descending=True, stable=True).indices
    groups = {}
    for name, members in zip(SHOTS, order.tensor_split(3), strict=True):
        mask = torch.zeros_like(counts, dtype=torch.bool)
        mask[members] = True
        groups[name] = mask
    return groups


def _counts(train_counts: Tensor | Sequence[int]) -> Tensor:
    counts = torch.as_tensor(train_counts)
    if counts.ndim != 1 or counts.numel() == 0 or bool((counts < 0).any()):
        raise ValueError(
            f"train_counts must hold one number of training images per class, shape (K,), none "
            f"negative; got shape {tuple(counts.shape)}"
        )
    return counts
