"""Accuracy on seen against unseen classes, as a bias moves predictions from one to the other.

A classifier that was trained on seen classes prefers them, and H measures that preference as much
as what the classifier knows: two of them can differ in H and yet lie on one curve. The area under
the curve (Chao et al., 2016) does not depend on the balance.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

#: Points that are kept of a curve.
POINTS = 201


@dataclass(frozen=True, eq=False)
class SeenUnseenCurve:
    """Means over classes, in percent, from every prediction seen to every prediction unseen.

    Args:
        auc: area under the whole curve, in percent of that of a classifier that is always right.
        seen: (B,) float64, falling; at most POINTS of the curve, its ends among them.
        unseen: (B,) float64, rising.
    """

    auc: float
    seen: Tensor
    unseen: Tensor


def seen_unseen_curve(scores: Tensor, targets: Tensor, unseen: Tensor) -> SeenUnseenCurve:
    """Sweep a bias that is added to the scores of all unseen classes.

    At a bias a prediction is the best seen class or the best unseen one, so a sample changes its
    prediction once, and the curve has a step for each sample that is right on its own side. Samples
    that change at the same bias change together.

    Args:
        scores: (N, K) of all classes.
        targets: (N,) class numbers.
        unseen: class numbers that were never trained on; the others are the seen ones.

    >>> scores = torch.tensor([[3.0, 0.0, 1.0], [0.0, 5.0, 1.0], [2.0, 0.0, 1.0]])
    >>> curve = seen_unseen_curve(scores, torch.tensor([0, 1, 2]), torch.tensor([2]))
    >>> list(zip(curve.seen.tolist(), curve.unseen.tolist(), strict=True)), curve.auc
    ([(100.0, 0.0), (100.0, 100.0), (50.0, 100.0), (0.0, 100.0)], 100.0)
    """
    if scores.ndim != 2 or targets.shape != scores.shape[:1]:
        raise ValueError(
            f"seen_unseen_curve needs scores (N, K) and targets (N,), got {tuple(scores.shape)} "
            f"and {tuple(targets.shape)}"
        )
    scores, targets = scores.detach().cpu().double(), targets.cpu()
    if bool(scores.isnan().any()):
        raise ValueError("scores hold values that are not numbers: the network has diverged")
    apart = torch.zeros(scores.shape[1], dtype=torch.bool)
    apart[unseen.cpu()] = True
    best_seen, seen_class = scores.masked_fill(apart, -torch.inf).max(1)
    best_unseen, unseen_class = scores.masked_fill(~apart, -torch.inf).max(1)
    biases, step = torch.unique(best_seen - best_unseen, return_inverse=True)

    is_unseen, samples = apart[targets], torch.bincount(targets, minlength=len(apart))
    curves = []
    for name, side, right in (
        ("seen", ~is_unseen, seen_class == targets),
        ("unseen", is_unseen, unseen_class == targets),
    ):
        classes = int(torch.count_nonzero(torch.bincount(targets[side])))
        if not classes:
            raise ValueError(f"seen_unseen_curve: no sample of a class that is {name}")
        share = 100.0 / (classes * samples[targets[side & right]].double())
        moved = torch.zeros(len(biases) + 1, dtype=torch.float64)
        curves.append(moved.index_add(0, step[side & right] + 1, share).cumsum(0))
    seen, risen = curves[0][-1] - curves[0], curves[1]
    auc = float(torch.trapezoid(seen, risen)) / 100
    kept = torch.linspace(0, len(seen) - 1, min(POINTS, len(seen))).round().long()
    return SeenUnseenCurve(auc, seen[kept], risen[kept])
