"""Calibration: does a confidence of 70% mean being right 70% of the time?"""

from __future__ import annotations

import math

from torch import Tensor


def expected_calibration_error(probabilities: Tensor, targets: Tensor, bins: int = 15) -> float:
    """Expected calibration error of the top-1 prediction, in percent (0..100).

    ``probabilities`` is (N, K) and ``targets`` (N,). Equal-width bins, weighted mean of
    ``|accuracy - confidence|`` (Guo et al., 2017). NaN where a probability is NaN.

    >>> import torch
    >>> expected_calibration_error(torch.tensor([[0.75, 0.25]]), torch.tensor([0]))
    25.0
    """
    if probabilities.ndim != 2 or targets.shape != probabilities.shape[:1]:
        raise ValueError(
            f"expected_calibration_error needs probabilities (N, K) and targets (N,), got "
            f"{tuple(probabilities.shape)} and {tuple(targets.shape)}"
        )
    confidences, predictions = probabilities.max(dim=1)
    return top1_calibration_error(confidences, predictions == targets, bins)


def top1_calibration_error(confidences: Tensor, correct: Tensor, bins: int = 15) -> float:
    """The same from top-1 confidences (N,) and whether each was right (N,), in percent.

    Enough for a whole test set without keeping its (N, K) probabilities.
    """
    if confidences.ndim != 1 or confidences.shape != correct.shape or confidences.numel() == 0:
        raise ValueError(
            f"top1_calibration_error needs two non-empty tensors of one shape (N,), got "
            f"{tuple(confidences.shape)} and {tuple(correct.shape)}"
        )
    # float64 on the CPU: exact sums over many samples, and no atomics that vary between runs.
    confidences = confidences.detach().cpu().double()
    if bool(confidences.isnan().any()):
        return math.nan
    # torchmetrics would silently squash values outside 0..1 through a sigmoid.
    if float(confidences.min()) < 0.0 or float(confidences.max()) > 1.0:
        raise ValueError(
            "the calibration error needs probabilities in 0..1; apply softmax to logits first"
        )
    try:
        from torchmetrics.functional.classification import binary_calibration_error
    except ImportError as error:
        raise ImportError(
            "the calibration error needs torchmetrics: pip install 'batchformer[lab]'"
        ) from error

    # torchmetrics gives a confidence of exactly 1 a bin of its own; saturated networks have many.
    below_one = math.nextafter(1.0, 0.0)
    calibration_error = binary_calibration_error(
        confidences.clamp(max=below_one), correct.cpu().long(), n_bins=bins, norm="l1"
    )
    return 100.0 * float(calibration_error)
