"""Accuracy by training images per class (many, medium, few shot), and calibration."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

BINS = 15  # bins of the calibration error, of equal width


def top1_calibration_error(confidences: Tensor, correct: Tensor) -> float:
    """Expected calibration error of top-1 predictions, in percent (Guo et al., 2017).

    The mean over bins, weighted by samples, of ``|accuracy - confidence|``; NaN if a confidence is
    NaN.

    Args:
        confidences: (N,) probabilities of the predictions.
        correct: (N,) whether each was right.

    >>> top1_calibration_error(torch.tensor([0.75]), torch.tensor([True]))
    25.0
    """
    if confidences.ndim != 1 or confidences.shape != correct.shape or confidences.numel() == 0:
        raise ValueError(
            f"top1_calibration_error needs two non-empty tensors of one shape (N,), got "
            f"{tuple(confidences.shape)} and {tuple(correct.shape)}"
        )
    # float64 on the CPU: exact sums over many samples, and deterministic.
    confidences = confidences.detach().cpu().double()
    if bool(confidences.isnan().any()):
        return math.nan
    if float(confidences.min()) < 0.0 or float(confidences.max()) > 1.0:
        raise ValueError(
            "the calibration error needs probabilities in 0..1; apply softmax to logits first"
        )
    # A bin contains its lower bound; a confidence of exactly 1 belongs to the last bin.
    bounds = torch.linspace(0, 1, BINS + 1, dtype=torch.float64)[1:-1]
    bin_of = torch.bucketize(confidences, bounds, right=True)
    surplus = torch.zeros(BINS, dtype=torch.float64)
    surplus.index_add_(0, bin_of, correct.cpu().double() - confidences)
    return 100.0 * float(surplus.abs().sum()) / len(confidences)


def per_class_accuracy(confusion: Tensor) -> Tensor:
    """Percent right per class (K,) from a confusion matrix (K, K) with targets in rows.

    NaN for a class without test samples. The result is float64 on the CPU.
    """
    if confusion.ndim != 2 or confusion.shape[0] != confusion.shape[1]:
        raise ValueError(f"the confusion matrix must be (K, K), got {tuple(confusion.shape)}")
    # Reduced before the cast: 8,142 classes make a matrix of half a gigabyte.
    right, total = confusion.diagonal().cpu().double(), confusion.sum(dim=1).cpu().double()
    return 100.0 * right / total


def shot_accuracy(confusion: Tensor, groups: Mapping[str, Tensor]) -> dict[str, float]:
    """Percent accuracies from a confusion matrix (K, K) with targets in rows.

    ``all`` is top-1 accuracy over samples; each group and ``mean_class`` are means over classes
    with test samples. A group without such a class is left out.

    >>> confusion = torch.tensor([[3, 1], [1, 0]])
    >>> from batchformer.insight.classes import shot_groups
    >>> shot_accuracy(confusion, shot_groups([500, 7]))
    {'all': 60.0, 'many': 75.0, 'few': 0.0, 'mean_class': 37.5}
    """
    accuracies = per_class_accuracy(confusion)
    _check_groups(groups, len(accuracies))
    samples = int(confusion.sum())
    if samples == 0:
        raise ValueError("shot_accuracy: the confusion matrix is empty; no test sample was counted")
    tested = ~accuracies.isnan()
    result = {"all": 100.0 * int(confusion.trace()) / samples}
    for name, mask in groups.items():
        members = mask.cpu() & tested
        if bool(members.any()):
            result[name] = float(accuracies[members].mean())
    result["mean_class"] = float(accuracies[tested].mean())
    return result


class LongTailedMetrics:
    """Accumulates a test set and gives ``shot_accuracy`` and the calibration error.

    Keeps three numbers per sample on the device of the logits, so ``update`` never waits for
    the device. With several processes, gather logits and targets first.
    """

    def __init__(self, num_classes: int, groups: Mapping[str, Tensor]) -> None:
        _check_groups(groups, num_classes)
        self.num_classes = num_classes
        self.groups = {name: mask.cpu() for name, mask in groups.items()}
        self._predictions: list[Tensor] = []
        self._confidences: list[Tensor] = []
        self._targets: list[Tensor] = []

    def update(self, logits: Tensor, targets: Tensor) -> None:
        """Add logits (N, K) with their class indices (N,)."""
        if logits.shape != (len(targets), self.num_classes) or targets.ndim != 1:
            raise ValueError(
                f"LongTailedMetrics needs logits (N, {self.num_classes}) and targets (N,), got "
                f"{tuple(logits.shape)} and {tuple(targets.shape)}"
            )
        logits = logits.detach()
        dtype = torch.promote_types(logits.dtype, torch.float32)
        self._predictions.append(logits.argmax(dim=1))
        self._confidences.append(logits.to(dtype).softmax(dim=1).amax(dim=1))
        # A copy: the loader may write its next batch into the same memory.
        self._targets.append(targets.detach().clone())

    @property
    def confusion(self) -> Tensor:
        """Confusion matrix (K, K) of int64 on the CPU, targets in rows, predictions in columns."""
        predictions, targets = self._gathered(self._predictions), self._gathered(self._targets)
        low, high = int(targets.min()), int(targets.max())
        if low < 0 or high >= self.num_classes:
            raise ValueError(
                f"targets run from {low} to {high}, outside 0..{self.num_classes - 1}: the test "
                f"set has other classes than num_classes={self.num_classes}"
            )
        cells = targets * self.num_classes + predictions
        return cells.bincount(minlength=self.num_classes**2).view(self.num_classes, -1)

    @property
    def correct(self) -> Tensor:
        """(N,) bool on the CPU: whether each sample was recognised, in order."""
        return self._gathered(self._predictions) == self._gathered(self._targets)

    @property
    def per_class(self) -> Tensor:
        """Percent right per class (K,), NaN for a class without test samples."""
        return per_class_accuracy(self.confusion)

    def compute(self) -> dict[str, float]:
        """All, the groups, ``mean_class`` and ``ece``, in percent."""
        result = shot_accuracy(self.confusion, self.groups)
        result["ece"] = top1_calibration_error(self._gathered(self._confidences), self.correct)
        return result

    def _gathered(self, parts: list[Tensor]) -> Tensor:
        if sum(map(len, parts)) == 0:
            raise ValueError("LongTailedMetrics has seen no sample; call update() first")
        return torch.cat(parts).cpu()


def _check_groups(groups: Mapping[str, Tensor], num_classes: int) -> None:
    for name, mask in groups.items():
        if mask.dtype != torch.bool or mask.shape != (num_classes,):
            raise ValueError(
                f"group {name!r} must be a bool mask of shape ({num_classes},), got "
                f"{mask.dtype} of shape {tuple(mask.shape)}; shot_groups() makes such masks"
            )
