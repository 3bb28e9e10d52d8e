"""Metrics of features: nearest neighbours, alignment, uniformity, spread."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

#: Similarities, and distances, held in memory at a time, or those of one row if they are more.
#: 2**27 take 0.5 GB in single precision.
BLOCK, PAIR_BLOCK = 2**27, 2**26


def votes(
    queries: Tensor,
    bank: Tensor,
    labels: Tensor,
    classes: int,
    k: int,
    temperature: float,
) -> Tensor:
    """Votes (N, K) of weighted nearest neighbours (Wu et al., 2018) by cosine similarity.

    The k nearest rows of the bank vote for their class with ``exp((cosine - largest) /
    temperature)``. These are the weights of Wu et al. up to a factor per query, which keeps them
    finite at any temperature and gives the nearest row a vote of 1. A zero vector has cosine 0 to
    all others. Ties for the last of the k places are resolved by ``torch.topk``.

    Args:
        queries: (N, C).
        bank: (M, C); all rows vote if M is less than k.
        labels: (M,) classes of the bank.
        temperature: above 0; the lower it is, the more the nearest count.

    >>> bank = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    >>> votes(torch.tensor([[2.0, 0.0]]), bank, torch.tensor([0, 0, 1]), 2, k=3, temperature=1.0)
    tensor([[2.0000, 0.3679]])
    """
    if len(bank) == 0 or len(bank) != len(labels):
        raise ValueError(
            f"votes needs a bank of features with one label each, got {len(bank)} features "
            f"and {len(labels)} labels"
        )
    if k < 1 or temperature <= 0:
        raise ValueError(f"votes needs k >= 1 and temperature > 0, got {k} and {temperature}")
    units, labels = F.normalize(bank, dim=1), labels.to(bank.device)
    rows = max(1, BLOCK // len(bank))
    parts = []
    for part in torch.split(F.normalize(queries, dim=1), rows):
        cosines, nearest = (part @ units.T).topk(min(k, len(bank)), dim=1)
        weights = ((cosines - cosines[:, :1]) / temperature).exp()
        empty = weights.new_zeros(len(part), classes)
        parts.append(empty.scatter_add_(1, labels[nearest], weights))
    return torch.cat(parts) if parts else queries.new_zeros(0, classes)


def log_shares(votes: Tensor) -> Tensor:
    """Logits (N, K) whose softmax is each class's share of the votes (N, K); all finite."""
    shares = votes / votes.sum(1, keepdim=True)
    return shares.clamp_min(torch.finfo(shares.dtype).tiny).log()


# Alignment and uniformity (Wang and Isola, 2020). They describe features but do not rank them:
# constant features are perfectly aligned, and random ones may be the most uniform.


def alignment(first: Tensor, second: Tensor) -> float:
    """Mean squared distance of the unit vectors of two views (N, C): 0 if equal, at most 4.

    >>> alignment(torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 3.0]]))
    2.0
    """
    if first.shape != second.shape or len(first) == 0:
        raise ValueError(
            f"alignment needs two views of the same samples, (N, C) each; got "
            f"{tuple(first.shape)} and {tuple(second.shape)}"
        )
    apart = F.normalize(first, dim=1) - F.normalize(second, dim=1)
    return float(apart.square().sum(1).mean())


def uniformity(features: Tensor) -> float:
    """Logarithm of the mean of ``exp(-2 |x - y|^2)`` over pairs of unit vectors.

    It is 0 if all N are the same, and about -4 if they are spread evenly over a sphere of many
    dimensions. Features are (N, C), at least two.
    """
    count = len(features)
    if count < 2:
        raise ValueError(f"uniformity needs at least two samples, got {count}")
    units = F.normalize(features, dim=1)
    total = 0.0
    rows = max(1, PAIR_BLOCK // count)
    for start, part in zip(range(0, count, rows), torch.split(units, rows), strict=True):
        # Every pair once: samples of this part with all later ones.
        squared = (2 - 2 * part @ units[start:].T).clamp_min(0)
        total += float((-2.0 * squared).exp().triu(1).sum())
    return math.log(total / (count * (count - 1) / 2))


def feature_std(features: Tensor) -> float:
    """Mean over channels of the standard deviation of unit vectors (N, C), times sqrt(C).

    About 1 if the vectors are spread evenly over the sphere, 0 if they have collapsed.
    """
    units = F.normalize(features, dim=1)
    return float(units.std(0, correction=0).mean()) * math.sqrt(features.shape[1])
