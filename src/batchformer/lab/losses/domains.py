"""Penalties that compare domains: CORAL, IRM and MDD."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from batchformer.lab.losses import require_shapes, widened


def coral(features: Tensor) -> Tensor:
    """CORAL (Sun and Saenko, 2016): how far means and covariances of domains differ; a scalar.

    For domains i < j with means ``mu`` (C,) and unbiased covariances ``S`` (C, C) it is the mean of
    ``mean((mu_i - mu_j)^2) + mean((S_i - S_j)^2)``. The mean over pairs of a squared difference is
    twice the unbiased variance over domains, which is computed here, in float32 or wider, also
    under autocast.

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
        rows = widened(features)
        means = rows.mean(1)  # (G, C)
        apart = rows - means.unsqueeze(1)
        covariances = apart.mT @ apart / (rows.shape[1] - 1)  # (G, C, C)
    return 2 * (means.var(0).mean() + covariances.var(0).mean())


def irm_penalty(logits: Tensor, targets: Tensor) -> Tensor:
    """IRM (Arjovsky et al., 2019): the squared slope of each domain's risk in w at 1; a scalar.

    The slope g is the derivative of the cross-entropy of ``w z`` by ``w`` at 1. For logits z of
    class y it is the mean over rows of ``sum_k softmax(z)_k z_k - z_y``; this closed form has the
    same derivatives as the definition and avoids double backward. Even rows give ``g1`` and odd
    rows ``g2``: the product of independent halves estimates the square without bias, and can be
    negative. The result is the mean of ``g1 g2`` over domains, in float32 or wider.

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
    scores = widened(logits)
    expected = (scores.softmax(2) * scores).sum(2)
    slopes = expected - scores.gather(2, targets.unsqueeze(2)).squeeze(2)  # (G, n)
    return (slopes[:, ::2].mean(1) * slopes[:, 1::2].mean(1)).mean()


def mdd(
    source: Tensor, source_adversary: Tensor, target: Tensor, target_adversary: Tensor, gamma: float
) -> Tensor:
    """Margin disparity discrepancy (Zhang et al., 2019) of source and target; a scalar.

    It is high if an adversary agrees with the classifier on the source and disagrees on the target:
    ``-gamma CE(a_s, argmax z_s) + log(1 - softmax(a_t)[argmax z_t])``, each term a mean over its
    rows, with logits z of the classifier and a of the adversary. The adversary maximises it, the
    features minimise it. It is computed in float32 or wider; no gradient reaches z.

    Args:
        source: (N, K) logits of the classifier.
        source_adversary: (N, K) logits of the adversary, for the same rows.
        target: (M, K).
        target_adversary: (M, K).
        gamma: margin factor, the weight of the source.

    >>> sure, torn = torch.tensor([[9.0, 0.0]]), torch.zeros(1, 2)
    >>> mdd(sure, torn, sure, torn, gamma=4.0)  # -4 log 2 + log(1 / 2)
    tensor(-3.4657)
    """
    require_shapes(
        "mdd",
        source=(source, "N K"),
        source_adversary=(source_adversary, "N K"),
        target=(target, "M K"),
        target_adversary=(target_adversary, "M K"),
    )
    if source.shape[1] < 2:
        raise ValueError("mdd needs at least two classes, or no answer can be another.")
    agreement = F.cross_entropy(widened(source_adversary), source.argmax(1))
    return -gamma * agreement + log_other(widened(target_adversary), target.argmax(1)).mean()


def log_other(logits: Tensor, classes: Tensor) -> Tensor:
    """``log(1 - softmax(logits)[class])`` (N,): the log of the other classes' probability.

    The released code computes ``log(min(1 - p + 1e-6, 1))``, which loses ``1 - p`` to rounding and
    has no gradient where p is near 1. The difference of two log-sum-exps is exact, needs no floor,
    and has a gradient of at most 1. Both agree to ``1e-6 / (1 - p)``.

    Args:
        logits: (N, K).
        classes: (N,) class indices.

    >>> log_other(torch.tensor([[0.0, 0.0], [100.0, 0.0]]), torch.tensor([0, 0]))
    tensor([  -0.6931, -100.0000])
    """
    named = classes.unsqueeze(1) == torch.arange(logits.shape[1], device=logits.device)
    return logits.masked_fill(named, -math.inf).logsumexp(1) - logits.logsumexp(1)
