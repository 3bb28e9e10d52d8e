"""What a reader should know of a long-tailed data set, for the run folder."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any, Protocol

from torch import Tensor


class LongTailed(Protocol):
    """A data set of either kind, in memory or in files."""

    @property
    def name(self) -> str: ...
    @property
    def split_sha256(self) -> str: ...
    @property
    def train(self) -> Sized: ...
    @property
    def test(self) -> Sized: ...
    @property
    def train_counts(self) -> Tensor: ...


def split_facts(data: LongTailed) -> dict[str, Any]:
    """Name and hash of the split, its sizes, and the largest and smallest class."""
    counts = data.train_counts
    return {
        "name": data.name,
        "split_sha256": data.split_sha256,
        "train": len(data.train),
        "test": len(data.test),
        "largest_class": int(counts.max()),
        "smallest_class": int(counts.min()),
    }
