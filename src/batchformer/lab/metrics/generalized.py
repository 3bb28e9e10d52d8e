"""Generalized zero-shot accuracy on seen and unseen classes, and its curve over a bias."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

POINTS = 201  # points that are kept of a curve


class NaNScoreError(ValueError):
    """Scores hold NaN, as those of a network that has diverged."""


@dataclass(frozen=True, eq=False)
class SeenUnseenCurve:
    """Accuracies in percent, from a bias where all predictions are seen classes to all unseen."""

    auc: float  # area under the whole curve, in percent of that of a perfect classifier
    seen: Tensor  # (B,) float64, falling, mean over seen classes; at most POINTS, with both ends
    unseen: Tensor  # (B,) float64, rising, mean over unseen classes


def seen_unseen_curve(scores: Tensor, targets: Tensor, unseen: Tensor) -> SeenUnseenCurve:
    """Sweep a bias that is added to the scores of all unseen classes.

    A classifier trained on seen classes prefers them. The harmonic mean H measures this preference
    as much as what the classifier knows: two classifiers can differ in H and share one curve. The
    area under the curve (Chao et al., 2016) does not depend on the preference.

    At each bias a prediction is the best seen or the best unseen class, so a sample changes its
    prediction once. It makes one step of the curve if its class is the best of those on its side,
    seen or unseen. Samples that change at the same bias make one step together.

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
        raise NaNScoreError("scores hold NaN: the network has diverged")
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


def generalized_accuracy(accuracies: Tensor, unseen: Tensor) -> dict[str, float]:
    """U, S and their harmonic mean H (0 if both are 0), in percent: ``{"hm", "unseen", "seen"}``.

    Each is a mean over classes, so all classes count the same; classes without samples are left
    out.

    Args:
        accuracies: (K,) percent right per class, for predictions among all K classes.

    >>> generalized_accuracy(torch.tensor([90.0, 70.0, 20.0]), unseen=torch.tensor([2]))
    {'hm': 32.0, 'unseen': 20.0, 'seen': 80.0}
    >>> generalized_accuracy(torch.zeros(3), unseen=torch.tensor([2]))["hm"]
    0.0
    """
    apart = torch.zeros(len(accuracies), dtype=torch.bool)
    apart[unseen.cpu()] = True
    means = {}
    for name, mask in (("unseen", apart), ("seen", ~apart)):
        means[name] = float(accuracies[mask].nanmean())
        if math.isnan(means[name]):
            raise ValueError(f"generalized_accuracy: no sample of a class that is {name}")
    both = sum(means.values())
    return {"hm": 2 * means["unseen"] * means["seen"] / both if both else 0.0, **means}
