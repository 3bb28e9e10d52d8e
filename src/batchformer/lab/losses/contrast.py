"""Contrast of samples with samples (Khosla et al., 2020), and of samples with classes."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F


def supervised_contrast(directions: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """How much nearer each sample is to its own class than to others; a scalar.

    With similarities ``s_ij = z_i . z_j / temperature``, the loss of sample i is the mean over the
    other samples p of its class of ``log sum_{j != i} exp(s_ij) - s_ip``. The mean is over samples
    that have such a p; without any it is 0. It is taken in float32 or wider, also under autocast;
    shapes are static and nothing is read back from the device.

    Args:
        directions: (N, Z) z, of length one.
        labels: (N,) class numbers.
        temperature: divides the similarities.

    >>> z = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    >>> supervised_contrast(z, torch.tensor([4, 4, 7]), 1.0)  # log(e + 1) - 1
    tensor(0.3133)
    """
    if directions.ndim != 2 or labels.shape != directions.shape[:1]:
        raise ValueError(
            "supervised_contrast needs directions (N, Z) and labels (N,), got "
            f"{tuple(directions.shape)} and {tuple(labels.shape)}."
        )
    _require_positive(temperature)
    z = directions.to(torch.promote_types(directions.dtype, torch.float32))
    with torch.autocast(z.device.type, enabled=False):
        similarities = z @ z.T / temperature
    itself = torch.eye(len(z), dtype=torch.bool, device=z.device)
    positive = (labels.unsqueeze(1) == labels) & ~itself
    count = positive.sum(1)
    total = similarities.masked_fill(itself, -math.inf).logsumexp(1)
    mean = similarities.masked_fill(~positive, 0.0).sum(1) / count.clamp(min=1)
    has = count > 0
    return torch.where(has, total - mean, 0.0).sum() / has.sum().clamp(min=1)


def class_contrast(scores: Tensor, targets: Tensor, temperature: float) -> Tensor:
    """Cross-entropy of ``scores / temperature``, a mean over samples; a scalar.

    Args:
        scores: (N, S) of each sample with each class.
        targets: (N,) numbers within these S classes.
        temperature: divides the scores.
    """
    _require_positive(temperature)
    wide = torch.promote_types(scores.dtype, torch.float32)
    return F.cross_entropy(scores.to(wide) / temperature, targets)


def _require_positive(temperature: float) -> None:
    if not temperature > 0:
        raise ValueError(f"the temperature must be above 0, got {temperature}.")
