"""What features look like on the unit sphere: do views agree, and is all of the sphere used?

Alignment and uniformity are those of Wang and Isola (2020). They describe features and judge none:
features that are all the same are perfectly aligned, random ones may be spread most evenly.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

#: Numbers of a block of distances.
BLOCK = 2**26


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


def uniformity(features: Tensor, scale: float = 2.0, block: int = BLOCK) -> float:
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
