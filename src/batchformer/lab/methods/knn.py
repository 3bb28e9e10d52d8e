"""Nearest neighbours: what features that another run has learnt know without a classifier."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from batchformer.insight.relations import Relations
from batchformer.lab.config.methods import ModuleConfig
from batchformer.lab.config.training import OptimConfig
from batchformer.lab.engine.optimizer_step import Batch, Mechanics
from batchformer.lab.methods.frozen import OnFrozenFeatures
from batchformer.lab.metrics.representation import log_shares, votes

#: Gives features (M, C) and labels (M,) of training images, by a function from images to features.
Bank = Callable[[Callable[[Tensor], Tensor]], tuple[Tensor, Tensor]]


class NearestNeighbours(OnFrozenFeatures):
    """Weighted votes of the nearest training images; nothing is trained, updates change nothing.

    Features are made in full precision, those of training images once for given weights. There is
    no BatchFormer here, whatever `module` says: an arm names the run whose features are compared.

    Args:
        network: gives the features; its classifier is not used.
        class_counts: (K,) training images of each class.
        bank: gives the features of training images.
        module: not used.
    """

    bank_features: Tensor | None
    bank_labels: Tensor | None

    def __init__(
        self,
        network: nn.Module,
        class_counts: Tensor,
        bank: Bank,
        module: ModuleConfig,
        **options: Any,
    ) -> None:
        absent = ModuleConfig(enabled=False)
        super().__init__(network, nn.CrossEntropyLoss(), module=absent, **options)
        self.num_classes, self.bank = len(class_counts), bank
        # Made again from the network, and as large as the training set: no part of a checkpoint.
        self.register_buffer("bank_features", None, persistent=False)
        self.register_buffer("bank_labels", None, persistent=False)
        self.requires_grad_(False)
        self.train()  # a module begins in training with all its parts

    def train(self, mode: bool = True) -> NearestNeighbours:
        super().train(mode)
        self.network.eval()
        return self

    def features(self, x: Tensor) -> Tensor:
        """Pooled features ``(N, C)`` in single precision."""
        with torch.autocast(x.device.type, enabled=False):
            return super().features(x.float()).float()

    def load_state_dict(self, *args: Any, **options: Any) -> Any:
        """Other weights have other features, so that the bank is emptied."""
        self.bank_features = self.bank_labels = None
        return super().load_state_dict(*args, **options)

    def before_evaluation(self) -> None:
        """Fill the bank."""
        self._filled()

    @torch.no_grad()
    def predict(self, x: Tensor) -> Tensor:
        """Logarithms ``(N, K)`` of the shares that classes have of the votes."""
        bank, labels = self._filled()
        k, temperature = self.hyper.neighbours, self.hyper.vote_temperature
        with torch.autocast(x.device.type, enabled=False):
            found = votes(self.features(x), bank, labels, self.num_classes, k, temperature)
        return log_shares(found)

    def relations(self) -> Relations | None:
        """None: votes of neighbours are no classifier of features."""
        return None

    def why_eager(self) -> str | None:
        return "nothing is trained"

    @torch.no_grad()
    def _filled(self) -> tuple[Tensor, Tensor]:
        if self.bank_features is None or self.bank_labels is None:
            self.bank_features, self.bank_labels = self.bank(self.features)
        return self.bank_features, self.bank_labels

    def optimizers(self, optim: OptimConfig) -> dict[str, Optimizer]:
        return {}

    @torch.no_grad()
    def update(
        self, batch: Batch, optimizers: dict[str, Optimizer], mechanics: Mechanics
    ) -> dict[str, Tensor]:
        """The cross-entropy of the shares, for the log."""
        return {"loss": F.cross_entropy(self.predict(batch["x"]), batch["y"])}
