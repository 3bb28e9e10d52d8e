"""Cross-entropy: empirical risk minimisation without regard to the class frequencies."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from batchformer.lab.methods.mixing import MixingClassifier


class CrossEntropy(MixingClassifier):
    """Cross-entropy, with Mixup, CutMix and smoothed targets where ``hyper`` asks for them.

    ``class_counts`` tells the number of classes alone.
    """

    def __init__(self, network: nn.Module, class_counts: Tensor, **options: Any) -> None:
        hyper = options.get("hyper")
        # Smoothing is linear, so that mixed targets may be smoothed as well as smooth ones mixed.
        smoothing = hyper.smoothing if hyper is not None else 0.0
        criterion = nn.CrossEntropyLoss(label_smoothing=smoothing)
        super().__init__(network, criterion, len(class_counts), **options)
