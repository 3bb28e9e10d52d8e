"""Balanced Softmax (Ren et al., 2020): cross-entropy on logits shifted by the class log-counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from batchformer.lab.losses.class_counts import checked_counts

Reduction = Literal["none", "mean", "sum"]


def balanced_softmax(
    logits: Tensor,
    targets: Tensor,
    class_counts: Tensor,
    *,
    reduction: Reduction = "mean",
) -> Tensor:
    """Cross-entropy on ``z_c + log n_c``; at test time the plain logits are used.

    ``logits`` is (N, K); ``targets`` is (N,) class indices or (N, K) class probabilities;
    ``class_counts`` is (K,) raw numbers of training images. Returns a scalar, or (N,) with
    ``reduction="none"``. The sum is taken in float32 or wider, whatever the type of the logits.

    A class with count 0 has probability 0: it leaves the denominator and gets no gradient. A
    target that gives weight to such a class has loss ``inf``, not NaN. Values are not checked
    here, because reading them would stall the device; ``BalancedSoftmax`` checks once.

    >>> balanced_softmax(torch.zeros(1, 2), torch.tensor([1]), torch.tensor([3, 1])).exp()
    tensor(4.)
    """
    if logits.ndim != 2 or class_counts.shape != logits.shape[1:]:
        raise ValueError(
            f"balanced_softmax needs logits (N, K) and class_counts (K,), got "
            f"{tuple(logits.shape)} and {tuple(class_counts.shape)}: give one count per class, "
            f"in the order of the logits"
        )
    if targets.shape not in (logits.shape, logits.shape[:1]):
        raise ValueError(
            f"balanced_softmax needs targets (N,) of class indices or (N, K) of probabilities, "
            f"got {tuple(targets.shape)} for logits {tuple(logits.shape)}"
        )
    dtype = torch.promote_types(logits.dtype, torch.float32)
    adjusted = logits + class_counts.to(dtype).log()
    if targets.ndim == 1:
        return F.cross_entropy(adjusted, targets, reduction=reduction)

    # An empty class has log-probability -inf, and 0 * -inf would be NaN.
    absent = (class_counts == 0) & (targets == 0)
    log_probabilities = adjusted.log_softmax(dim=1).masked_fill(absent, 0.0)
    losses = -(targets * log_probabilities).sum(dim=1)
    if reduction == "none":
        return losses
    if reduction == "sum":
        return losses.sum()
    if reduction == "mean":
        return losses.mean()
    raise ValueError(f"reduction must be 'none', 'mean' or 'sum', got {reduction!r}")


class BalancedSoftmax(nn.Module):
    """``balanced_softmax`` with the class counts of one training set.

    ``class_counts`` is (K,). The counts describe the data and not the model, so they move with
    the module but stay out of its ``state_dict``. A class without training images is an error,
    most often a wrong split or a wrong number of classes; ``allow_empty=True`` accepts it and
    excludes the class: its logit is not trained, and a target that names it has loss ``inf``.
    """

    class_counts: Tensor

    def __init__(
        self,
        class_counts: Tensor | Sequence[int],
        *,
        reduction: Reduction = "mean",
        allow_empty: bool = False,
    ) -> None:
        super().__init__()
        checked_counts(class_counts, "BalancedSoftmax", allow_empty=allow_empty)
        counts = torch.as_tensor(class_counts).detach().clone()
        self.reduction: Reduction = reduction
        self.register_buffer("class_counts", counts, persistent=False)

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Loss of logits (N, K) against targets (N,) or (N, K)."""
        return balanced_softmax(logits, targets, self.class_counts, reduction=self.reduction)

    def extra_repr(self) -> str:
        """Number of classes and reduction, for ``print``."""
        return f"classes={self.class_counts.numel()}, reduction={self.reduction!r}"
