"""Generalized zero-shot accuracy: seen and unseen classes, each the mean over its classes."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def class_accuracy(predictions: Tensor, targets: Tensor, num_classes: int) -> Tensor:
    """Percent right per class (K,), float64 on the CPU; NaN for a class without samples.

    Args:
        predictions: (N,) class numbers, out of all K.
        targets: (N,) class numbers.
        num_classes: K.

    >>> class_accuracy(torch.tensor([0, 1, 1]), torch.tensor([0, 0, 1]), 3)
    tensor([ 50., 100.,  nan], dtype=torch.float64)
    """
    if predictions.shape != targets.shape or targets.ndim != 1:
        raise ValueError(
            f"class_accuracy needs predictions and targets (N,), got {tuple(predictions.shape)} "
            f"and {tuple(targets.shape)}"
        )
    answers, truth = predictions.cpu(), targets.cpu()
    total = torch.bincount(truth, minlength=num_classes)
    if len(total) > num_classes:
        raise ValueError(f"targets run up to {len(total) - 1}, above the {num_classes} classes")
    right = torch.bincount(truth[answers == truth], minlength=num_classes)
    return 100.0 * right.double() / total.double()


def harmonic_mean(first: float, second: float) -> float:
    """``2ab / (a + b)``; 0 if both are 0.

    >>> harmonic_mean(60.0, 40.0), harmonic_mean(0.0, 0.0)
    (48.0, 0.0)
    """
    return 2 * first * second / (first + second) if first + second else 0.0


def generalized_accuracy(accuracies: Tensor, unseen: Tensor) -> dict[str, float]:
    """U, S and their harmonic mean H, in percent: ``{"hm", "unseen", "seen"}``.

    Each is a mean over classes, so that a class counts the same however many samples it has;
    classes without samples are left out.

    Args:
        accuracies: (K,) percent right per class, of :func:`class_accuracy`, where every sample
            could be given any of the K classes.
        unseen: class numbers that were never trained on; the others are the seen ones.

    >>> generalized_accuracy(torch.tensor([90.0, 70.0, 20.0]), unseen=torch.tensor([2]))
    {'hm': 32.0, 'unseen': 20.0, 'seen': 80.0}
    """
    apart = torch.zeros(len(accuracies), dtype=torch.bool)
    apart[unseen.cpu()] = True
    means = {}
    for name, mask in (("unseen", apart), ("seen", ~apart)):
        means[name] = float(accuracies[mask].nanmean())
        if math.isnan(means[name]):
            raise ValueError(f"generalized_accuracy: no sample of a class that is {name}")
    return {"hm": harmonic_mean(means["unseen"], means["seen"]), **means}
