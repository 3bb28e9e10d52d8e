"""LDAM (Cao et al., 2019): cross-entropy with a margin that is larger for rarer classes."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from batchformer.lab.losses.class_counts import ClassCounts, checked_counts
from batchformer.lab.losses.effective_number import effective_number_weights

#: What a network gives: cosines times the scale (as RIDE's heads do), or the cosines themselves
#: (as LDAM-DRW's head does), which the loss then scales.
LogitsAre = Literal["scaled", "cosines"]


def ldam_margins(
    class_counts: ClassCounts, largest: float = 0.5, *, allow_empty: bool = False
) -> Tensor:
    """Margins (K,) in proportion to ``n_c^(-1/4)``; the rarest class has the `largest`.

    Args:
        class_counts: (K,) training images of each class.
        largest: margin of the rarest class, in cosines.
        allow_empty: a class without images gets margin 0 and does not count as the rarest;
            otherwise such a class is an error.

    >>> ldam_margins([10_000, 625, 16])
    tensor([0.1000, 0.2000, 0.5000])
    """
    counts = checked_counts(class_counts, "ldam_margins", allow_empty=allow_empty)
    rarity = torch.where(counts > 0, counts, torch.inf).pow(-0.25)
    return (rarity * (largest / rarity.max())).to(torch.get_default_dtype())


def ldam(
    logits: Tensor,
    targets: Tensor,
    margins: Tensor,
    scale: float = 30.0,
    class_weights: Tensor | None = None,
    *,
    logits_are: LogitsAre = "scaled",
) -> Tensor:
    """Cross-entropy after the true class's cosine is lowered by its margin; a scalar.

    With cosines ``c`` and scale ``s`` this is the cross-entropy of ``s (c - m_y 1_y)``. The mean
    over samples is weighted by ``class_weights[y]`` as in ``torch``'s ``cross_entropy``: the sum of
    weighted losses over the sum of weights. It is taken in float32 or wider.

    Args:
        logits: (N, K), by default ``s c``, cosines already multiplied by `scale`.
        targets: (N,) class indices.
        margins: (K,), from :func:`ldam_margins`.
        scale: ``s``. It multiplies the margins, and the logits only if they are cosines.
        class_weights: (K,), or None for equal weights.
        logits_are: "scaled" (``s c``) or "cosines" (``c``).

    >>> cosines, y, margins = torch.tensor([[0.5, 0.0]]), torch.tensor([0]), torch.full((2,), 0.5)
    >>> ldam(2 * cosines, y, margins, scale=2).exp()  # both classes at 0 after the margin
    tensor(2.)
    >>> ldam(cosines, y, margins, scale=2, logits_are="cosines").exp()
    tensor(2.)
    """
    if logits.ndim != 2 or margins.shape != logits.shape[1:] or targets.shape != logits.shape[:1]:
        raise ValueError(
            f"ldam needs logits (N, K), targets (N,) of class indices and margins (K,), got "
            f"{tuple(logits.shape)}, {tuple(targets.shape)} and {tuple(margins.shape)}"
        )
    if logits_are not in ("scaled", "cosines"):
        raise ValueError(f"logits_are must be 'scaled' or 'cosines', got {logits_are!r}")
    scores = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if logits_are == "cosines":
        scores = scores * scale
    classes = torch.arange(logits.shape[1], device=logits.device)
    true_class = targets.unsqueeze(1) == classes
    scores = scores - true_class * (scale * margins.to(scores.dtype))
    weights = None if class_weights is None else class_weights.to(scores.dtype)
    return F.cross_entropy(scores, targets, weights)


class LDAM(nn.Module):
    """``ldam`` with the margins of one training set and deferred re-weighting.

    Args:
        class_counts: (K,) training images of each class.
        largest: margin of the rarest class.
        scale: what cosines are multiplied by.
        beta: of the effective-number class weights that hold while `reweighted` is true.
        logits_are: as in :func:`ldam`.
        allow_empty: accept classes without images; they have neither margin nor weight.
    """

    margins: Tensor
    class_weights: Tensor

    reweighted: bool = False
    """Set to True from the epoch of deferred re-weighting on. Python decides by it, so it belongs
    to the phase of a method whose updates are recorded."""

    def __init__(
        self,
        class_counts: ClassCounts,
        *,
        largest: float = 0.5,
        scale: float = 30.0,
        beta: float = 0.9999,
        logits_are: LogitsAre = "scaled",
        allow_empty: bool = False,
    ) -> None:
        super().__init__()
        self.scale, self.logits_are = scale, logits_are
        margins = ldam_margins(class_counts, largest, allow_empty=allow_empty)
        weights = effective_number_weights(class_counts, beta, allow_empty=allow_empty)
        # They describe the data and not the model, so they stay out of its state.
        self.register_buffer("margins", margins, persistent=False)
        self.register_buffer("class_weights", weights, persistent=False)

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Loss of logits (N, K) against targets (N,)."""
        weights = self.class_weights if self.reweighted else None
        return ldam(logits, targets, self.margins, self.scale, weights, logits_are=self.logits_are)

    def extra_repr(self) -> str:
        """Number of classes and scale, for ``print``."""
        return f"classes={self.margins.numel()}, scale={self.scale:g}"
