"""What is measured of a network without its BatchFormer: calibration and feature space."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from batchformer.insight.record import CONFIDENCES, SHOTS


def reliability(
    confidence: Tensor, correct: Tensor, shot: Tensor, bins: int = CONFIDENCES
) -> dict[str, NDArray[Any]]:
    """Sums over predictions in bins of confidence: their number, confidence and right answers.

    Args:
        confidence: (M,) probability of the predicted class.
        correct: (M,) bool, whether it was the label.
        shot: (M,) the shot group of the label: 0, 1 or 2.
        bins: their number. They have equal width; a confidence on an edge counts in the upper bin,
            and 1 in the last.

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


def principal_axes(features: Tensor) -> tuple[Tensor, Tensor]:
    """Project features (S, C) on two principal axes: points (S, 2), shares of variance (2,).

    The largest entry of an axis is made positive, so that the same features give one picture.
    """
    centred = _as_float64(features)
    centred = centred - centred.mean(0)
    rows, channels = centred.shape
    # Both products of the features with themselves have the same spectrum; use the smaller one.
    if channels <= rows:
        variance, directions = torch.linalg.eigh(centred.T @ centred)
    else:
        variance, left = torch.linalg.eigh(centred @ centred.T)
        directions = centred.T @ left
        directions = directions / directions.norm(dim=0).clamp_min(1e-300)
    variance = variance.clamp_min(0).flip(0)
    chosen = directions.flip(1)[:, :2]
    largest = chosen.gather(0, chosen.abs().argmax(0, keepdim=True))
    points, shares = centred.new_zeros(rows, 2), centred.new_zeros(2)
    found = chosen.shape[1]
    points[:, :found] = centred @ (chosen * torch.where(largest < 0, -1.0, 1.0))
    shares[:found] = variance[:2] / variance.sum().clamp_min(1e-300)
    return points, shares


def separation_and_spread(
    features: Tensor, labels: Tensor, shot_of_class: Tensor
) -> tuple[Tensor, Tensor]:
    """How far classes lie apart and how wide they are, (3,) each, by shot group.

    With the mean m_c of the features of class c, and w_c, the mean distance of its samples from it:
    separation is the mean over a group's classes of min |m_c - m_d| / w_c over all other classes d;
    spread is the mean of w_c over a group's classes, divided by its mean over all classes. A class
    counts if it has two samples that differ; NaN for a group without such a class.
    Features are (M, C), labels (M,), and ``shot_of_class`` (K,) is 0, 1 or 2.
    """
    features, labels = _as_float64(features), labels.cpu()
    present, row = torch.unique(labels, return_inverse=True)
    number = torch.bincount(row).double()
    sums = features.new_zeros(len(present), features.shape[1]).index_add_(0, row, features)
    means = sums / number[:, None]
    distance = (features - means[row]).norm(dim=1)
    width = torch.bincount(row, distance) / number
    # Use exact differences: the rounding of a matrix product would hide small distances.
    between = torch.cdist(means, means, compute_mode="donot_use_mm_for_euclid_dist")
    nearest = between.fill_diagonal_(torch.inf).amin(1)
    counted = width > 0
    shot = shot_of_class.cpu()[present]
    groups = [(shot == group) & counted for group in range(len(SHOTS))]
    ratio = nearest / width if len(present) > 1 else torch.full_like(width, torch.nan)
    separation = [float(ratio[own].mean()) for own in groups]
    spread = [float(width[own].mean() / width[counted].mean()) for own in groups]
    return torch.tensor(separation).double(), torch.tensor(spread).double()


def _as_float64(features: Tensor) -> Tensor:
    """Features as (S, C) float64 on the CPU; those of several experts are concatenated."""
    return features.detach().flatten(1).cpu().double()
