"""Balanced Softmax: cross-entropy on logits shifted by the log of the class counts."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from batchformer.losses.balanced_softmax import BalancedSoftmax
from batchformer.methods.classifier import Classifier


class BalancedSoftmaxMethod(Classifier):
    """One-stage Balanced Softmax; plain logits at test."""

    def __init__(self, network: nn.Module, class_counts: Tensor, **options: Any) -> None:
        super().__init__(network, BalancedSoftmax(class_counts, allow_empty=True), **options)
