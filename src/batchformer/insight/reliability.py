"""Does a confidence of 70% mean being right 70% of the time, also for rare classes?"""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from batchformer.insight.record import CONFIDENCES, SHOTS


def reliability(
    confidence: Tensor, correct: Tensor, shot: Tensor, bins: int = CONFIDENCES
) -> dict[str, NDArray[Any]]:
    """Predictions by confidence: how many, their confidence and how many are right, as sums.

    Args:
        confidence: (M,) probability of the predicted class.
        correct: (M,) bool, whether it was the label.
        shot: (M,) 0, 1 or 2, of the label.
        bins: of equal width; a confidence on an edge is in the upper one, 1 in the last.

    Returns:
        ``reliability_count``, ``reliability_confidence`` and ``reliability_correct``, (4, bins)
        each: of all predictions, then of the labels of many, medium and few shots.
    """
    confidence = confidence.detach().cpu().double()
    correct, shot = correct.cpu().double(), shot.cpu()
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64)
    row = (torch.bucketize(confidence, edges, right=True) - 1).clamp(0, bins - 1)
    groups = [torch.ones_like(shot, dtype=torch.bool), *(shot == g for g in range(len(SHOTS)))]

    def summed(values: Tensor) -> NDArray[Any]:
        sums = [torch.bincount(row[own], values[own], minlength=bins) for own in groups]
        found: NDArray[Any] = torch.stack(sums).double().numpy()
        return found

    return {
        "reliability_count": summed(torch.ones_like(confidence)),
        "reliability_confidence": summed(confidence),
        "reliability_correct": summed(correct),
    }
