"""CORAL (Sun and Saenko, 2016): how far the first two moments of domains lie apart."""

from __future__ import annotations

import torch
from torch import Tensor


def coral(features: Tensor) -> Tensor:
    """Mean over pairs of domains of their squared distance in mean and covariance; a scalar.

    For domains i < j with means ``mu`` (C,) and unbiased covariances ``S`` (C, C) it is the mean of
    ``mean((mu_i - mu_j)^2) + mean((S_i - S_j)^2)``. The mean over pairs of a squared difference is
    twice the unbiased variance over the domains, which is what is computed, in float32 or wider,
    also under autocast.

    Args:
        features: (G, n, C), n samples of each of G domains.

    >>> coral(torch.tensor([[[0.0], [2.0]], [[3.0], [5.0]]]))  # same spread, means 1 and 4
    tensor(9.)
    """
    if features.ndim != 3 or features.shape[0] < 2 or features.shape[1] < 2:
        raise ValueError(
            "coral needs features (G, n, C) of at least two domains with at least two samples "
            f"each, as one sample has no covariance; got {tuple(features.shape)}. Set "
            "train.batch-size higher."
        )
    with torch.autocast(features.device.type, enabled=False):
        rows = features.to(torch.promote_types(features.dtype, torch.float32))
        means = rows.mean(1)  # (G, C)
        apart = rows - means.unsqueeze(1)
        covariances = apart.mT @ apart / (rows.shape[1] - 1)  # (G, C, C)
    return 2 * (means.var(0).mean() + covariances.var(0).mean())
