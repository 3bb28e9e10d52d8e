"""A classifier trained on features that stay as an earlier run left them."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor, nn

from batchformer.insight.relations import Relations
from batchformer.lab.methods.classifier import Classifier


class OnFrozenFeatures(Classifier):
    """Only the classifier, and BatchFormer before it, are trained.

    With ``hyper.frozen_mode="train"`` the features' normalisation goes on with batch statistics, as
    in the released code; by default it is in eval, so that features do not depend on the batch.
    """

    def __init__(self, network: nn.Module, criterion: nn.Module, **options: Any) -> None:
        super().__init__(network, criterion, **options)
        contract: Any = network
        network.requires_grad_(False)
        contract.get_classifier().requires_grad_(True)

    def train(self, mode: bool = True) -> OnFrozenFeatures:
        super().train(mode)
        self.network.train(mode and self.hyper.frozen_mode == "train")
        return self

    def features(self, x: Tensor) -> Tensor:
        """Pooled features ``(N, C)`` of images ``(N, channels, H, W)``, without gradients."""
        with torch.no_grad():
            return super().features(x)

    def relations(self) -> Relations | None:
        """With features that have gradients: those of images are asked for, not of weights."""
        found = super().relations()
        return None if found is None else dataclasses.replace(found, features=super().features)
