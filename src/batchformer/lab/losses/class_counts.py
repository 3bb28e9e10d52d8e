"""Numbers of training images per class, checked once before losses are made of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

ClassCounts = Tensor | Sequence[int]


def checked_counts(class_counts: ClassCounts, who: str, *, allow_empty: bool = False) -> Tensor:
    """The counts (K,) in float64, or an error that begins with `who`.

    A class without training images is most often a wrong split or a wrong number of classes, and
    so an error, unless `allow_empty` says that it is meant.

    >>> checked_counts([5, 2], "example")
    tensor([5., 2.], dtype=torch.float64)
    """
    counts = torch.as_tensor(class_counts).detach().double().clone()
    if counts.ndim != 1 or counts.numel() == 0:
        raise ValueError(
            f"{who} needs one count per class, shape (K,), got {tuple(counts.shape)}: count the "
            f"training labels, for example with torch.bincount"
        )
    # Written so that NaN fails it too.
    if not bool(((counts >= 0) & (counts < float("inf"))).all()):
        raise ValueError(f"{who}: class counts must be finite and not negative")
    empty = (counts == 0).nonzero().flatten().tolist()
    if len(empty) == counts.numel():
        raise ValueError(f"{who}: every class count is 0; count the training labels")
    if empty and not allow_empty:
        named = ", ".join(map(str, empty[:10])) + (", ..." if len(empty) > 10 else "")
        raise ValueError(
            f"{who}: {len(empty)} of {counts.numel()} classes have no training image (classes "
            f"{named}). Check the split and the number of classes, or pass allow_empty=True to "
            f"leave these classes out"
        )
    return counts
