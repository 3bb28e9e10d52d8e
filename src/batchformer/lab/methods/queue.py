"""A ring of the newest keys with their labels, in tensors alone."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class KeyQueue(nn.Module):
    """Keys (Q, D) and labels (Q,) of the newest samples; it begins empty.

    Where the next key goes is a tensor too, so that a recorded update moves on when replayed.

    Args:
        size: Q.
        dim: D.

    >>> queue = KeyQueue(size=3, dim=1)
    >>> queue.push(torch.tensor([[1.0], [2.0]]), torch.tensor([5, 6]))
    >>> queue.push(torch.tensor([[3.0], [4.0]]), torch.tensor([7, 8]))
    >>> queue.keys.flatten(), queue.labels
    (tensor([4., 2., 3.]), tensor([8, 6, 7]))
    """

    keys: Tensor
    labels: Tensor
    valid: Tensor
    position: Tensor

    def __init__(self, size: int, dim: int) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(size, dim))
        self.register_buffer("labels", torch.zeros(size, dtype=torch.int64))
        self.register_buffer("valid", torch.zeros(size, dtype=torch.bool))
        self.register_buffer("position", torch.zeros((), dtype=torch.int64))

    @torch.no_grad()
    def push(self, keys: Tensor, labels: Tensor) -> None:
        """Take in keys (N, D) with labels (N,); of more than Q the last Q are kept."""
        size = len(self.keys)
        keys, labels = keys[-size:].to(self.keys.dtype), labels[-size:]
        where = (self.position + torch.arange(len(keys), device=keys.device)) % size
        self.keys.index_copy_(0, where, keys)
        self.labels.index_copy_(0, where, labels)
        self.valid.index_fill_(0, where, True)
        self.position.copy_((self.position + len(keys)) % size)
