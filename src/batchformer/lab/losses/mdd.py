"""Margin disparity discrepancy (Zhang et al., 2019) of a source and a target domain."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F


def mdd(
    source: Tensor, source_adversary: Tensor, target: Tensor, target_adversary: Tensor, gamma: float
) -> Tensor:
    """How well an adversary agrees on the source and disagrees on the target; a scalar.

    ``-gamma CE(a_s, argmax z_s) + log(1 - softmax(a_t)[argmax z_t])``, each term a mean over its
    rows, with logits z of the classifier and a of the adversary. The adversary is trained to raise
    it, the features to lower it. It is taken in float32 or wider; no gradient reaches z.

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
    shapes = [tuple(t.shape) for t in (source, source_adversary, target, target_adversary)]
    if source.ndim != 2 or shapes[0] != shapes[1] or shapes[2] != shapes[3]:
        raise ValueError(f"mdd needs logits (N, K) twice and (M, K) twice, got {shapes}.")
    if shapes[0][1] != shapes[2][1] or shapes[0][1] < 2:
        raise ValueError(f"mdd needs the same two or more classes in both domains, got {shapes}.")
    wide = torch.promote_types(source_adversary.dtype, torch.float32)
    agreement = F.cross_entropy(source_adversary.to(wide), source.argmax(1))
    return -gamma * agreement + log_other(target_adversary.to(wide), target.argmax(1)).mean()


def log_other(logits: Tensor, classes: Tensor) -> Tensor:
    """``log(1 - softmax(logits)[class])`` (N,): the log of the other classes' probability.

    The released code takes ``log(min(1 - p + 1e-6, 1))``, in which ``1 - p`` is lost to rounding
    and the gradient vanishes where p is near 1. Here it is the difference of two log-sums of
    exponentials: exact, without a floor, and with a gradient of at most 1 everywhere. Both agree to
    ``1e-6 / (1 - p)``.

    Args:
        logits: (N, K).
        classes: (N,) class indices.

    >>> log_other(torch.tensor([[0.0, 0.0], [100.0, 0.0]]), torch.tensor([0, 0]))
    tensor([  -0.6931, -100.0000])
    """
    named = classes.unsqueeze(1) == torch.arange(logits.shape[1], device=logits.device)
    return logits.masked_fill(named, -math.inf).logsumexp(1) - logits.logsumexp(1)
