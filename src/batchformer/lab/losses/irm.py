"""IRM (Arjovsky et al., 2019): whether one classifier is the best for every domain."""

from __future__ import annotations

import torch
from torch import Tensor


def irm_penalty(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean over domains of ``g1 g2``, the slopes of the risk in the scale of the logits; a scalar.

    ``g`` is the derivative of the cross-entropy of ``w z`` by ``w`` at 1. For logits z of class y
    it is ``sum_k softmax(z)_k z_k - z_y``, meaned over rows: the closed form has the derivatives of
    the definition, and needs no graph of a graph. Even rows give ``g1`` and odd rows ``g2``, so
    that the product of independent halves estimates the square without bias, and it can be
    negative. It is taken in float32 or wider.

    Args:
        logits: (G, n, K), n samples of each of G domains.
        targets: (G, n) class indices.

    >>> logits = torch.tensor([[[2.0, 0.0], [0.0, 2.0]]])  # right on the first row only
    >>> p = torch.tensor([2.0, 0.0]).softmax(0)
    >>> irm_penalty(logits, torch.tensor([[0, 0]])), (2 * p[0] - 2) * 2 * p[0]
    (tensor(-0.4200), tensor(-0.4200))
    """
    if logits.ndim != 3 or targets.shape != logits.shape[:2] or logits.shape[1] < 2:
        raise ValueError(
            "irm_penalty needs logits (G, n, K) and targets (G, n) of class indices with at least "
            f"two samples of each domain, got {tuple(logits.shape)} and {tuple(targets.shape)}."
        )
    scores = logits.to(torch.promote_types(logits.dtype, torch.float32))
    expected = (scores.softmax(2) * scores).sum(2)
    slopes = expected - scores.gather(2, targets.unsqueeze(2)).squeeze(2)  # (G, n)
    return (slopes[:, ::2].mean(1) * slopes[:, 1::2].mean(1)).mean()
