"""Losses for long tails: Balanced Softmax, LDAM, and class weights by effective numbers.

All take the numbers of training images per class, which :func:`checked_counts` checks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from batchformer.lab.losses import require_shapes, widened

#: (K,) training images of each class.
ClassCounts = Tensor | Sequence[int]


def checked_counts(class_counts: ClassCounts, who: str) -> Tensor:
    """The counts (K,) in float64, or an error that begins with `who`.

    Some classes may have no training image.

    >>> checked_counts([5, 2], "example")
    tensor([5., 2.], dtype=torch.float64)
    """
    counts = torch.as_tensor(class_counts).detach().double().clone()
    if counts.ndim != 1 or counts.numel() == 0:
        raise ValueError(
            f"{who} needs one count per class, shape (K,), got {tuple(counts.shape)}: count the "
            f"training labels, for example with torch.bincount"
        )
    # Written so that NaN fails too.
    if not bool(((counts >= 0) & (counts < float("inf"))).all()):
        raise ValueError(f"{who}: class counts must be finite and not negative")
    if not bool(counts.any()):
        raise ValueError(f"{who}: every class count is 0; count the training labels")
    return counts


def effective_number_weights(class_counts: ClassCounts, beta: float = 0.9999) -> Tensor:
    """Class weights (K,) by the effective number of samples (Cui et al., 2019), of mean one.

    They are inversely proportional to ``(1 - beta^n_c) / (1 - beta)``. With ``beta=0`` all weights
    are 1; towards ``beta=1`` they become inverse frequencies. Deferred re-weighting (Cao et al.,
    2019) uses them only in the last part of a training. A class without images has weight 0, and
    the weights of the K' others sum to K'.

    Args:
        beta: in [0, 1).

    >>> effective_number_weights([1, 3], beta=0.5)  # effective numbers 1 and 1.75
    tensor([1.2727, 0.7273])
    """
    counts = checked_counts(class_counts, "effective_number_weights")
    present = counts > 0
    # expm1 keeps 1 - beta^n exact where beta^n is close to 1.
    effective = torch.ones_like(counts) if beta == 0 else -torch.expm1(counts * math.log(beta))
    weights = torch.where(present, effective, torch.inf).reciprocal()
    return (weights * (present.sum() / weights.sum())).to(torch.get_default_dtype())


# Balanced Softmax (Ren et al., 2020).


def balanced_softmax(
    logits: Tensor,
    targets: Tensor,
    class_counts: Tensor,
    *,
    reduction: Literal["none", "mean"] = "mean",
) -> Tensor:
    """Cross-entropy on ``z_c + log n_c``; at test time the plain logits are used.

    ``logits`` is (N, K); ``targets`` is (N,) class indices or (N, K) class probabilities;
    ``class_counts`` is (K,) raw numbers of training images. Returns a scalar, or (N,) with
    ``reduction="none"``. It is computed in float32 or wider, whatever the type of the logits.

    A class with count 0 has probability 0: it is not in the denominator and gets no gradient. A
    target that gives weight to such a class has loss ``inf``, not NaN. Values are not checked
    here, because reading them would stall the device; ``BalancedSoftmax`` checks them once.

    >>> balanced_softmax(torch.zeros(1, 2), torch.tensor([1]), torch.tensor([3, 1])).exp()
    tensor(4.)
    """
    require_shapes(
        "balanced_softmax",
        logits=(logits, "N K"),
        targets=(targets, "N" if targets.ndim == 1 else "N K"),
        class_counts=(class_counts, "K"),
    )
    dtype = torch.promote_types(logits.dtype, torch.float32)
    adjusted = logits + class_counts.to(dtype).log()
    if targets.ndim == 1:
        return F.cross_entropy(adjusted, targets, reduction=reduction)

    # An empty class has log-probability -inf, and 0 * -inf would be NaN.
    absent = (class_counts == 0) & (targets == 0)
    log_probabilities = adjusted.log_softmax(dim=1).masked_fill(absent, 0.0)
    losses = -(targets * log_probabilities).sum(dim=1)
    return losses if reduction == "none" else losses.mean()


class BalancedSoftmax(nn.Module):
    """``balanced_softmax`` with the class counts (K,) of one training set.

    The counts describe the data and not the model, so they move with the module but are not in its
    ``state_dict``.
    """

    class_counts: Tensor

    def __init__(self, class_counts: ClassCounts) -> None:
        super().__init__()
        checked_counts(class_counts, "BalancedSoftmax")
        counts = torch.as_tensor(class_counts).detach().clone()
        self.register_buffer("class_counts", counts, persistent=False)

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Loss of logits (N, K) against targets (N,) or (N, K)."""
        return balanced_softmax(logits, targets, self.class_counts)


# LDAM (Cao et al., 2019): cross-entropy with a margin that is larger for rarer classes.


def ldam_margins(class_counts: ClassCounts, largest: float = 0.5) -> Tensor:
    """Margins (K,) proportional to ``n_c^(-1/4)``; the rarest class has the `largest`.

    A class without images has margin 0, and does not count as the rarest.

    Args:
        largest: margin of the rarest class, in cosines.

    >>> ldam_margins([10_000, 625, 16])
    tensor([0.1000, 0.2000, 0.5000])
    """
    counts = checked_counts(class_counts, "ldam_margins")
    rarity = torch.where(counts > 0, counts, torch.inf).pow(-0.25)
    return (rarity * (largest / rarity.max())).to(torch.get_default_dtype())


def ldam(
    logits: Tensor,
    targets: Tensor,
    margins: Tensor,
    scale: float = 30.0,
    class_weights: Tensor | None = None,
) -> Tensor:
    """Cross-entropy after the true class's cosine is lowered by its margin; a scalar.

    With cosines ``c`` and scale ``s`` this is the cross-entropy of ``s (c - m_y 1_y)``. The mean
    over samples is weighted by ``class_weights[y]`` as in ``torch``'s ``cross_entropy``: the sum of
    weighted losses over the sum of weights. It is computed in float32 or wider.

    Args:
        logits: (N, K), ``s c``: cosines already multiplied by `scale`.
        targets: (N,) class indices.
        margins: (K,), from :func:`ldam_margins`.
        scale: ``s``, which multiplies the margins.
        class_weights: (K,), or None for equal weights.

    >>> cosines, y, margins = torch.tensor([[0.5, 0.0]]), torch.tensor([0]), torch.full((2,), 0.5)
    >>> ldam(2 * cosines, y, margins, scale=2).exp()  # both classes at 0 after the margin
    tensor(2.)
    """
    require_shapes("ldam", logits=(logits, "N K"), targets=(targets, "N"), margins=(margins, "K"))
    scores = widened(logits)
    classes = torch.arange(logits.shape[1], device=logits.device)
    true_class = targets.unsqueeze(1) == classes
    scores = scores - true_class * (scale * margins.to(scores.dtype))
    weights = None if class_weights is None else class_weights.to(scores.dtype)
    return F.cross_entropy(scores, targets, weights)


class LDAM(nn.Module):
    """``ldam`` with the margins of one training set and deferred re-weighting.

    Args:
        beta: of the effective-number class weights that apply while `reweighted` is true.
    """

    margins: Tensor
    class_weights: Tensor

    reweighted: bool = False
    """Set it to True when deferred re-weighting begins. Python branches on it, so it must be part
    of the phase of a method whose updates are captured."""

    def __init__(
        self,
        class_counts: ClassCounts,
        *,
        largest: float = 0.5,
        scale: float = 30.0,
        beta: float = 0.9999,
    ) -> None:
        super().__init__()
        self.scale = scale
        margins = ldam_margins(class_counts, largest)
        weights = effective_number_weights(class_counts, beta)
        # They describe the data and not the model, so they stay out of its state.
        self.register_buffer("margins", margins, persistent=False)
        self.register_buffer("class_weights", weights, persistent=False)

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Loss of logits (N, K) against targets (N,)."""
        weights = self.class_weights if self.reweighted else None
        return ldam(logits, targets, self.margins, self.scale, weights)
