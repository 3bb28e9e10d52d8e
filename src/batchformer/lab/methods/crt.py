"""cRT (Kang et al., 2020): the classifier trained anew, on frozen features and balanced classes."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from batchformer.lab.methods.frozen import OnFrozenFeatures
from batchformer.lab.methods.head import classifier_of
from batchformer.nn.randomness import drawing


class RetrainedClassifier(OnFrozenFeatures):
    """Cross-entropy on a classifier that begins anew; the recipe's sampler balances the classes."""

    def __init__(self, network: nn.Module, class_counts: Tensor, seed: int, **options: Any) -> None:
        super().__init__(network, nn.CrossEntropyLoss(), seed=seed, **options)
        with drawing(seed, "weights", 1):
            classifier_of(network).reset_parameters()
