"""OLTR's loss on class centroids (Liu et al., 2019), as its authors' code has it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

#: Mean squared distance to other classes' centroids below which they repel.
MARGIN = 10.0
#: Weight of the repulsion beside the attraction.
REPULSION = 0.01


def attraction(features: Tensor, labels: Tensor, centroids: Tensor, weight: float = 1.0) -> Tensor:
    """``weight`` times half the mean squared distance of features to the centroids of their class.

    The gradient of the centroids is not that of the value. As in the authors' code, centroid k
    gets ``sum_i (M_k - v_i) / (1 + n_k) / N`` over the ``n_k`` samples of its class, and the
    weight does not scale it.

    Args:
        features: v, (N, C).
        labels: (N,) classes.
        centroids: M, (K, C).

    >>> v, m = torch.tensor([[3.0, 4.0]]), torch.tensor([[0.0, 0.0], [3.0, 0.0]])
    >>> attraction(v, torch.tensor([0]), m)
    tensor(12.5000)
    """
    own = centroids.detach()[labels]
    value = weight * (features - own).square().sum() / (2 * len(features))
    with torch.no_grad():
        # A matrix product rather than index_add_, whose order of summation varies on a GPU.
        shares = F.one_hot(labels, len(centroids)).T.to(features.dtype)
        pull = shares @ (own - features) / (1 + shares.sum(1, keepdim=True)) / len(features)
    moved = (pull * centroids).sum()
    return value + moved - moved.detach()


def repulsion(features: Tensor, labels: Tensor, centroids: Tensor) -> Tensor:
    """How far the squared distances to the centroids of other classes fall short of ``MARGIN``.

    They are summed over all N samples and other classes, and divided by N K; shapes are those of
    :func:`attraction`.

    >>> v, m = torch.tensor([[3.0, 4.0]]), torch.tensor([[0.0, 0.0], [3.0, 0.0]])
    >>> repulsion(v, torch.tensor([0]), m)
    tensor(2.)
    """
    squares = features.square().sum(1, keepdim=True) + centroids.square().sum(1)
    distances = squares - 2 * features @ centroids.T
    others = distances.masked_fill(F.one_hot(labels, len(centroids)).bool(), 0.0)
    return (MARGIN - others.sum() / others.numel()).clamp(min=0)


def centroid_loss(
    features: Tensor, labels: Tensor, centroids: Tensor, weight: float = 1.0
) -> Tensor:
    """``weight`` times the attraction to the own centroid and the repulsion from the others.

    The weight does not scale the attraction of centroids (see :func:`attraction`). It is computed
    in single precision at least, also under autocast.
    """
    with torch.autocast(features.device.type, enabled=False):
        features = features.to(torch.promote_types(features.dtype, centroids.dtype))
        apart = repulsion(features, labels, centroids)
        return attraction(features, labels, centroids, weight) + weight * REPULSION * apart
