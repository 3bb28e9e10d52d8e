"""Attention and influence between samples, summed over batches by the classes of the samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from batchformer.insight.classes import Classes
from batchformer.insight.gradient import BatchInfluence, on_images
from batchformer.insight.record import SHOTS
from batchformer.insight.relations import Relations


class AttentionSums:
    """Sums of attention weights of H heads over batches, from which readers make means."""

    def __init__(self, classes: Classes, heads: int) -> None:
        self.classes, self.bin_of_class = classes, classes.bin_of_class
        self.sums: dict[str, Tensor] = {}
        # An empty batch sets every sum to zeros of its shape.
        self.add(torch.zeros(heads, 0, 0), torch.zeros(0, dtype=torch.int64))

    def add(self, attention: Tensor, labels: Tensor, to_context: Tensor | None = None) -> None:
        """Add the attention weights (H, N, N) of a batch with labels (N,).

        ``to_context`` (H, N) is the attention that samples give to context rows, if there are any.
        """
        labels, samples = labels.cpu(), len(labels)
        bins, shots = self.bin_of_class[labels], self.classes.shot_of_class[labels]
        itself = attention.detach().cpu().double().diagonal(dim1=-2, dim2=-1).sum(-1)
        same, pairs = of_own_class(attention, labels)
        rest = without_self(attention).sum((-2, -1)) - same
        found = {
            "attention": sums_between(attention, bins, self.classes.bins),
            "bin_pairs": counts_between(bins, self.classes.bins),
            "attention_shots": sums_between(attention, shots, len(SHOTS)),
            "shot_pairs": counts_between(shots, len(SHOTS)),
            "attention_self": _with_count(itself, samples),
            "attention_same": _with_count(same, pairs),
            "attention_other": _with_count(rest, samples * (samples - 1) - pairs),
        }
        if to_context is not None:
            given = to_context.detach().cpu().double().sum(-1)
            found["attention_context"] = _with_count(given, samples)
        for name, value in found.items():
            self.sums[name] = self.sums[name] + value if name in self.sums else value

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The sums, under their names in :mod:`batchformer.insight.record`."""
        found = {name: total.numpy() for name, total in self.sums.items()}
        found["attention"] = found["attention"].astype(np.float32)
        return {"bin_of_class": self.bin_of_class.numpy(), **found}


class InfluenceSums:
    """Sums over batches: gradients of samples' losses on the other samples of their batch.

    Args:
        classes: K, the number of classes.
        steps: on how many other samples' input images each loss is measured; 0 for none.
    """

    def __init__(self, classes: int, steps: int) -> None:
        self.classes, self.steps = classes, steps
        self.samples = torch.zeros(classes, dtype=torch.int64)
        names = ("abs", "l2", "images_abs", "images_l2")
        self.sums = {name: torch.zeros(classes, dtype=torch.float64) for name in names}

    def add(self, seen: BatchInfluence, labels: Tensor, relations: Relations, x: Tensor) -> None:
        """Add a batch of N > 1 images (N, ...) with labels (N,)."""
        labels, others = labels.cpu(), len(labels) - 1
        self.samples += torch.bincount(labels, minlength=self.classes)
        self._add("abs", without_self(seen.absolute).sum(1) / others, labels)
        self._add("l2", without_self(seen.length).sum(1) / others, labels)
        if self.steps:
            absolute, length = on_images(relations, x, seen.following)
            self._add("images_abs", absolute.mean(0), labels)
            self._add("images_l2", length.mean(0), labels)

    def _add(self, name: str, values: Tensor, labels: Tensor) -> None:
        values = values.detach().cpu().double()
        self.sums[name] += torch.bincount(labels, values, minlength=self.classes)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Means and sample counts, under their record names; NaN for a class not measured."""
        measured = {
            f"gradient_{name}": (total / self.samples).numpy()
            for name, total in self.sums.items()
            if self.steps or not name.startswith("images")
        }
        return {**measured, "gradient_samples": self.samples.numpy()}


def _with_count(sums: Tensor, count: int) -> Tensor:
    """Sums (H,) and the number of their terms: (H, 2)."""
    return torch.stack((sums, torch.full_like(sums, count)), dim=-1)


# Sums over pairs of different samples


def sums_between(values: Tensor, group: Tensor, groups: int) -> Tensor:
    """Sum values (..., N, N) over pairs i != j by groups: (..., P, P), i's group in the row.

    Args:
        values: of i in the row and j in the column, on any device.
        group: (N,) numbers 0..P-1.
        groups: P.

    >>> sums_between(torch.tensor([[9.0, 1.0], [2.0, 9.0]]), torch.tensor([0, 1]), 2)
    tensor([[0., 1.],
            [2., 0.]], dtype=torch.float64)
    """
    members = F.one_hot(group.cpu(), groups).double()
    return members.T @ without_self(values) @ members


def counts_between(group: Tensor, groups: int) -> Tensor:
    """Count pairs of different samples by groups: (P, P) int64."""
    members = torch.bincount(group.cpu(), minlength=groups)
    return members[:, None] * members - members.diag()


def without_self(values: Tensor) -> Tensor:
    """The values (..., N, N) as float64 on the CPU, with 0 on the diagonal."""
    # On the CPU sums are exact, and there are no atomics, whose results vary between runs.
    values = values.detach().cpu().double()
    return values * (1 - torch.eye(values.shape[-1], dtype=values.dtype))


def of_own_class(values: Tensor, labels: Tensor) -> tuple[Tensor, int]:
    """Sum values (..., N, N) over pairs i != j of one class: (...,), and the number of pairs."""
    labels = labels.cpu()
    same = (labels[:, None] == labels) & ~torch.eye(len(labels), dtype=torch.bool)
    return (values.detach().cpu().double() * same).sum((-2, -1)), int(same.sum())
