"""Cross-entropy: empirical risk minimisation without regard to the class frequencies."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from batchformer.methods.classifier import Classifier


class CrossEntropy(Classifier):
    """Plain cross-entropy. ``class_counts`` is accepted, as by every method, and not used."""

    def __init__(self, network: nn.Module, class_counts: Tensor, **options: Any) -> None:
        super().__init__(network, nn.CrossEntropyLoss(), **options)
