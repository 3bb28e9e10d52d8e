"""Sums over pairs of different samples, by the groups that they are of."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def sums_between(values: Tensor, group: Tensor, groups: int) -> Tensor:
    """(..., P, P) float64: values (..., N, N) of pairs i != j, i's group in the row.

    Args:
        values: of i in the row and j in the column, on any device.
        group: (N,) numbers 0..P-1.
        groups: P.

    >>> sums_between(torch.tensor([[9.0, 1.0], [2.0, 9.0]]), torch.tensor([0, 1]), 2)
    tensor([[0., 1.],
            [2., 0.]], dtype=torch.float64)
    """
    members = F.one_hot(group.cpu(), groups).double()
    return members.T @ without_self(values) @ members


def counts_between(group: Tensor, groups: int) -> Tensor:
    """(P, P) int64: how many pairs of different samples there are."""
    members = torch.bincount(group.cpu(), minlength=groups)
    return members[:, None] * members - members.diag()


def without_self(values: Tensor) -> Tensor:
    """(..., N, N) float64 on the CPU, 0 on the diagonal."""
    # On the CPU: exact sums, and no atomics that vary between runs.
    wide = values.detach().cpu().double()
    return wide * (1 - torch.eye(wide.shape[-1], dtype=wide.dtype))


def of_own_class(values: Tensor, labels: Tensor) -> tuple[Tensor, int]:
    """Sums (...,) over pairs i != j of one class, of values (..., N, N), and how many there are."""
    labels = labels.cpu()
    same = (labels[:, None] == labels) & ~torch.eye(len(labels), dtype=torch.bool)
    return (values.detach().cpu().double() * same).sum((-2, -1)), int(same.sum())
