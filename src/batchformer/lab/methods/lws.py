"""LWS (Kang et al., 2020): a trained classifier whose classes learn one factor each."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from batchformer.lab.methods.frozen import OnFrozenFeatures
from batchformer.lab.methods.head import classifier_of, replace_classifier


class ScaledClassifier(nn.Module):
    """Logits of a frozen linear classifier, each times its class's learned factor.

    Args:
        classifier: what is scaled; gradients no longer reach it.
    """

    def __init__(self, classifier: nn.Linear) -> None:
        super().__init__()
        self.classifier = classifier.requires_grad_(False)
        self.scale = nn.Parameter(torch.ones(classifier.out_features))

    def forward(self, x: Tensor) -> Tensor:
        """Features (N, C) to logits (N, K)."""
        logits: Tensor = self.scale * self.classifier(x)
        return logits


class LearnedScales(OnFrozenFeatures):
    """Cross-entropy on the factors alone; the recipe's sampler balances the classes."""

    def __init__(self, network: nn.Module, class_counts: Tensor, **options: Any) -> None:
        super().__init__(network, nn.CrossEntropyLoss(), **options)
        replace_classifier(network, ScaledClassifier(classifier_of(network)))
