"""Labels that follow attention: a mixed row is labelled by the samples that it attends to."""

from __future__ import annotations

import torch
from torch import Tensor

from batchformer.lab.data.transforms.mixup import one_hot


def attended_labels(attention: Tensor, targets: Tensor, classes: int, share: float = 1.0) -> Tensor:
    """Soft labels (N, K): the labels of the batch, weighted as each row attends to them.

    Args:
        attention: (N, N), rows that sum to 1; detached.
        targets: (N,) classes, or (N, K) shares of classes.
        classes: K.
        share: weight of the attended labels; the rest is the sample's own label.

    >>> attention = torch.tensor([[0.75, 0.25], [0.5, 0.5]])
    >>> attended_labels(attention, torch.tensor([2, 0]), 3)
    tensor([[0.2500, 0.0000, 0.7500],
            [0.5000, 0.0000, 0.5000]])
    """
    own = one_hot(targets, classes) if targets.ndim == 1 else targets
    own = own.to(attention.dtype)
    # Autocast would round the weights to half precision.
    with torch.autocast(attention.device.type, enabled=False):
        attended = attention @ own
    return share * attended + (1 - share) * own


def permute_others(attention: Tensor) -> Tensor:
    """(N, N) with the weights of each row permuted among the other samples, a control.

    A row keeps its weight for itself. Each of the permutations of the other weights is equally
    likely, and every row has its own. Shapes are static and nothing is read back from the device.
    """
    rows = torch.arange(len(attention), device=attention.device)[:, None]
    order = torch.rand(attention.shape, device=attention.device).argsort(1)
    # Taking n out of its cycle in permutation n leaves a uniform permutation of the others.
    order = torch.where(order == rows, order.gather(1, rows), order)
    order = torch.where(rows == rows.T, rows, order)
    return attention.gather(1, order)
