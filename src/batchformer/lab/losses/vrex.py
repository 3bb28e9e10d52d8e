"""V-REx (Krueger et al., 2021): how unequal the risks of domains are."""

from __future__ import annotations

from torch import Tensor


def vrex(losses: Tensor) -> Tensor:
    """Population variance of the domains' losses; a scalar.

    Args:
        losses: (G,), the mean loss of each domain.

    >>> import torch
    >>> vrex(torch.tensor([1.0, 2.0, 6.0]))  # the mean of 4, 1 and 9
    tensor(4.6667)
    """
    if losses.ndim != 1 or not len(losses):
        raise ValueError(f"vrex needs losses (G,), one of each domain, got {tuple(losses.shape)}.")
    return losses.var(correction=0)
