"""Classifiers on frozen features of an earlier run (Kang et al., 2020): cRT, LWS, tau-norm."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor, nn

from batchformer.insight.relations import Relations
from batchformer.lab.engine.method import Untrained
from batchformer.lab.methods.classifier import Classifier, classifier_of, head_of
from batchformer.lab.models.heads import replace_classifier
from batchformer.nn.randomness import drawing


class OnFrozenFeatures(Classifier):
    """Trains only the classifier, and BatchFormer before it, on an earlier run's features.

    With ``hyper.frozen_mode="train"`` the network normalises with batch statistics, as in the
    released code. By default it is in eval, so that features do not depend on the batch.
    """

    def __init__(self, network: nn.Module, criterion: nn.Module, **options: Any) -> None:
        super().__init__(network, criterion, **options)
        network.requires_grad_(False)
        head_of(network).requires_grad_(True)

    def train(self, mode: bool = True) -> OnFrozenFeatures:
        super().train(mode)
        self.network.train(mode and self.hyper.frozen_mode == "train")
        return self

    def features(self, x: Tensor) -> Tensor:
        """Pooled features ``(N, C)`` of images ``(N, channels, H, W)``, without gradients."""
        with torch.no_grad():
            return super().features(x)

    def relations(self) -> Relations | None:
        """With differentiable features: figures need gradients of images, not of weights."""
        found = super().relations()
        return None if found is None else dataclasses.replace(found, features=super().features)


class RetrainedClassifier(OnFrozenFeatures):
    """cRT: cross-entropy on a new classifier; the recipe's sampler balances the classes."""

    def __init__(self, network: nn.Module, class_counts: Tensor, seed: int, **options: Any) -> None:
        super().__init__(network, nn.CrossEntropyLoss(), seed=seed, **options)
        with drawing(seed, "weights", 1):
            classifier_of(network).reset_parameters()


class ScaledClassifier(nn.Module):
    """Logits of a frozen linear classifier, each times its class's learned factor."""

    def __init__(self, classifier: nn.Linear) -> None:
        super().__init__()
        self.classifier = classifier.requires_grad_(False)
        self.scale = nn.Parameter(torch.ones(classifier.out_features))

    def forward(self, x: Tensor) -> Tensor:
        """Features (N, C) to logits (N, K)."""
        logits: Tensor = self.scale * self.classifier(x)
        return logits


class LearnedScales(OnFrozenFeatures):
    """LWS: cross-entropy on one factor for each class; the recipe's sampler balances classes."""

    def __init__(self, network: nn.Module, class_counts: Tensor, **options: Any) -> None:
        super().__init__(network, nn.CrossEntropyLoss(), **options)
        replace_classifier(network, ScaledClassifier(classifier_of(network)))


@torch.no_grad()
def tau_normalise(classifier: nn.Linear, tau: float) -> None:
    """Divide each class's weights by the tau-th power of their length, and drop the biases.

    Frequent classes have longer weights. Tau 0 keeps the lengths, tau 1 makes all of them 1.

    >>> classifier = nn.Linear(2, 1)
    >>> _ = classifier.weight.data.copy_(torch.tensor([[3.0, 4.0]]))
    >>> tau_normalise(classifier, tau=1.0)
    >>> classifier.weight.data
    tensor([[0.6000, 0.8000]])
    """
    lengths = classifier.weight.norm(dim=1, keepdim=True)
    classifier.weight.div_(lengths.pow(tau))
    if classifier.bias is not None:
        classifier.bias.zero_()


class TauNormalised(Untrained, OnFrozenFeatures):
    """Normalises the classifier of an earlier run, once."""

    def __init__(self, network: nn.Module, class_counts: Tensor, **options: Any) -> None:
        super().__init__(network, nn.CrossEntropyLoss(), **options)
        tau_normalise(classifier_of(network), self.hyper.tau)
        self.requires_grad_(False)
