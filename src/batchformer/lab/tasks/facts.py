"""What a reader should know of a long-tailed data set, for the run folder and before training."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any, Protocol

from torch import Tensor

from batchformer.lab.config.data import LongTailConfig
from batchformer.lab.metrics.shots import shot_groups, third_groups


class LongTailed(Protocol):
    """A data set of either kind, in memory or in files."""

    @property
    def name(self) -> str: ...
    @property
    def train_sha256(self) -> str: ...
    @property
    def split_sha256(self) -> str: ...
    @property
    def train(self) -> Sized: ...
    @property
    def test(self) -> Sized: ...
    @property
    def train_counts(self) -> Tensor: ...


def split_facts(data: LongTailed) -> dict[str, Any]:
    """Name of the split, hashes of all of it and of its training part, its sizes, and the largest
    and smallest class."""
    counts = data.train_counts
    return {
        "name": data.name,
        "split_sha256": data.split_sha256,
        "train_sha256": data.train_sha256,
        "train": len(data.train),
        "test": len(data.test),
        "largest_class": int(counts.max()),
        "smallest_class": int(counts.min()),
    }


def class_sizes(counts: Tensor, config: LongTailConfig) -> str:
    """One line on how many classes and training images there are, and how they fall into shots.

    Args:
        counts: (K,) training images of each class.
        config: says how classes are grouped, and whether they are scored so.

    >>> import torch
    >>> class_sizes(torch.tensor([1200, 60, 5]), LongTailConfig())
    '3 classes, 1,265 training images: 1,200 in the largest class, 5 in the smallest; \
1 many, 1 medium, 1 few'
    """
    line = (
        f"{len(counts)} classes, {int(counts.sum()):,} training images: {int(counts.max()):,} in "
        f"the largest class, {int(counts.min()):,} in the smallest"
    )
    if config.scores == "top":
        return line
    thirds = config.shots == "thirds"
    groups = third_groups(counts) if thirds else shot_groups(counts)
    shots = ", ".join(f"{int(mask.sum())} {name}" for name, mask in groups.items())
    return f"{line}; {shots}" + (" (thirds by training images)" if thirds else "")
