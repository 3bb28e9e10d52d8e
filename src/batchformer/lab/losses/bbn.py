"""BBN (Zhou et al., 2020): features of two branches, mixed, and one loss with both labels.

This follows the released code. The paper has no factor of 2 on the mixed features.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def cumulative_alpha(epoch: int, length: float) -> float:
    """The weight of the conventional branch in an epoch, from 0: it falls from 1 along a parabola.

    >>> [cumulative_alpha(epoch, 200) for epoch in (0, 50, 100)]
    [1.0, 0.9375, 0.75]
    >>> cumulative_alpha(300, 200)
    0.0
    """
    return max(0.0, 1 - (epoch / length) ** 2)


def mixed_branches(conventional: Tensor, rebalancing: Tensor, alpha: Tensor) -> Tensor:
    """Features (rows, C) of each branch to (rows, 2C); alpha 0.5 gives their concatenation.

    Args:
        conventional: of images as they come.
        rebalancing: of images of rare classes, paired with the others row by row.
        alpha: scalar, the weight of the conventional branch.

    >>> mixed_branches(torch.tensor([[3.0]]), torch.tensor([[5.0]]), torch.tensor(0.75))
    tensor([[4.5000, 2.5000]])
    """
    return 2 * torch.cat((alpha * conventional, (1 - alpha) * rebalancing), dim=1)


def bilateral_loss(logits: Tensor, targets: tuple[Tensor, Tensor], alpha: Tensor) -> Tensor:
    """Cross-entropy with both labels of each pair, weighted as their features are; a scalar.

    Args:
        logits: (rows, K) of mixed features.
        targets: (rows,) classes of the conventional images, and of the rebalancing ones.
        alpha: scalar, the weight of the conventional branch.
    """
    losses = [F.cross_entropy(logits, labels) for labels in targets]
    return alpha * losses[0] + (1 - alpha) * losses[1]
