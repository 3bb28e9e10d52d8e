"""What features know without being trained on: neighbours, alignment, uniformity."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

# Weighted nearest neighbours (Wu et al., 2018): what features know without being trained on.

#: Numbers of a block of similarities; 0.5 GB in single precision.
BLOCK = 2**27


def votes(
    queries: Tensor,
    bank: Tensor,
    labels: Tensor,
    classes: int,
    k: int,
    temperature: float,
    block: int = BLOCK,
) -> Tensor:
    """Votes (N, K) of the k rows of the bank that are nearest to each query by their cosine.

    Each of them votes for its class with ``exp((cosine - largest) / temperature)``: the weights of
    Wu et al. but for a factor of each query, which keeps them finite at any temperature, so that
    the nearest has a vote of 1. A vector of zeros has the cosine 0 to all others. Of rows that
    are equally near, the last of the k are whichever ``torch.topk`` takes.

    Args:
        queries: (N, C).
        bank: (M, C); where M is less than k, all of it votes.
        labels: (M,) classes of the bank.
        classes: K.
        k: how many vote.
        temperature: above 0; the lower, the more the nearest count.
        block: similarities that are held at a time, at the least those of one query.

    >>> bank = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    >>> votes(torch.tensor([[2.0, 0.0]]), bank, torch.tensor([0, 0, 1]), 2, k=3, temperature=1.0)
    tensor([[2.0000, 0.3679]])
    """
    if len(bank) == 0 or len(bank) != len(labels):
        raise ValueError(
            f"neighbours are sought among features with a label each, got {len(bank)} features "
            f"and {len(labels)} labels"
        )
    if k < 1 or temperature <= 0:
        raise ValueError(f"votes needs k >= 1 and temperature > 0, got {k} and {temperature}")
    units, labels = F.normalize(bank, dim=1), labels.to(bank.device)
    rows = max(1, block // len(bank))
    parts = []
    for part in torch.split(F.normalize(queries, dim=1), rows):
        cosines, nearest = (part @ units.T).topk(min(k, len(bank)), dim=1)
        weights = ((cosines - cosines[:, :1]) / temperature).exp()
        empty = weights.new_zeros(len(part), classes)
        parts.append(empty.scatter_add_(1, labels[nearest], weights))
    return torch.cat(parts) if parts else queries.new_zeros(0, classes)


def log_shares(votes: Tensor) -> Tensor:
    """Logarithms of the shares (N, K) that classes have of the votes (N, K), all finite.

    They are logits: their softmax is the shares, and their order that of the votes.
    """
    shares = votes / votes.sum(1, keepdim=True)
    return shares.clamp_min(torch.finfo(shares.dtype).tiny).log()


# What features look like on the unit sphere: do views agree, and is all of the sphere used?
#
# Alignment and uniformity are those of Wang and Isola (2020). They describe features and judge
# none: features that are all the same are perfectly aligned, random ones may be spread most evenly.

#: Numbers of a block of distances.
PAIR_BLOCK = 2**26


def alignment(first: Tensor, second: Tensor) -> float:
    """Mean squared distance of the unit vectors of two views (N, C), from 0, alike, to 4.

    >>> alignment(torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 3.0]]))
    2.0
    """
    if first.shape != second.shape or len(first) == 0:
        raise ValueError(
            f"alignment is of two views of the same samples, (N, C) each; got "
            f"{tuple(first.shape)} and {tuple(second.shape)}"
        )
    apart = F.normalize(first, dim=1) - F.normalize(second, dim=1)
    return float(apart.square().sum(1).mean())


def uniformity(features: Tensor, scale: float = 2.0, block: int = PAIR_BLOCK) -> float:
    """Logarithm of the mean of ``exp(-scale |x - y|^2)`` over pairs of unit vectors.

    0 where all N are the same; about ``-2 scale`` where they are spread evenly over a sphere of
    many dimensions.

    Args:
        features: (N, C), two at the least.
        scale: t.
        block: distances that are held at a time, at the least those of one sample.
    """
    count = len(features)
    if count < 2:
        raise ValueError(f"uniformity is of pairs, and there is {count} sample")
    units = F.normalize(features, dim=1)
    total = 0.0
    for start, part in _parts(units, max(1, block // count)):
        # Every pair once: samples of this part with all later ones.
        squared = (2 - 2 * part @ units[start:].T).clamp_min(0)
        total += float((-scale * squared).exp().triu(1).sum())
    return math.log(total / (count * (count - 1) / 2))


def feature_std(features: Tensor) -> float:
    """Mean over channels of the standard deviation of unit vectors (N, C), times sqrt(C).

    About 1 where the vectors are spread evenly over the sphere, 0 where they have collapsed.
    """
    units = F.normalize(features, dim=1)
    return float(units.std(0, correction=0).mean()) * math.sqrt(features.shape[1])


def _parts(rows: Tensor, size: int) -> list[tuple[int, Tensor]]:
    starts = range(0, len(rows), size)
    return list(zip(starts, torch.split(rows, size), strict=True))
