"""Balanced Softmax: cross-entropy on logits shifted by the log of the class counts."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from batchformer.lab.losses.long_tailed import BalancedSoftmax
from batchformer.lab.methods.mixing import MixingClassifier


class BalancedSoftmaxMethod(MixingClassifier):
    """One-stage Balanced Softmax; plain logits at test. Batches may be mixed by Mixup or CutMix."""

    def __init__(self, network: nn.Module, class_counts: Tensor, **options: Any) -> None:
        criterion = BalancedSoftmax(class_counts, allow_empty=True)
        super().__init__(network, criterion, len(class_counts), **options)
