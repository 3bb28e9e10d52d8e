"""How good the features of another run are: linear probe and nearest neighbours.

BatchFormer takes no part here, whatever ``module`` says: an arm names the run whose features are
probed, and all arms are probed alike.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from batchformer.insight.relations import Relations
from batchformer.lab.config.methods import ModuleConfig
from batchformer.lab.config.training import require
from batchformer.lab.engine.method import Untrained
from batchformer.lab.methods.classifier import classifier_of
from batchformer.lab.methods.training_images import Bank, measured, require_bank
from batchformer.lab.methods.two_stage import OnFrozenFeatures
from batchformer.lab.metrics.representation import log_shares, votes
from batchformer.nn.randomness import drawing

#: Standard deviation of the classifier's initial weights, by the protocol of MoCo.
DEVIATION = 0.01


class _Probe(OnFrozenFeatures):
    """A network that is frozen and always in eval, without BatchFormer."""

    def __init__(self, network: nn.Module, module: ModuleConfig, **options: Any) -> None:
        absent = ModuleConfig(enabled=False)
        super().__init__(network, nn.CrossEntropyLoss(), module=absent, **options)
        self.train()  # a new module and all its parts are in training mode

    def train(self, mode: bool = True) -> Any:
        super().train(mode)
        self.network.eval()
        return self


class LinearProbe(_Probe):
    """Cross-entropy on a new linear classifier.

    With ``hyper.probe_scale="unit"`` features are divided by one number, so that their mean squared
    length over the training images is 1. This leaves the same classifiers within reach, and makes
    the learning rate independent of the scale of the network's features.

    Args:
        bank: gives features of the training images; only for "unit".
    """

    length: Tensor

    def __init__(
        self,
        network: nn.Module,
        class_counts: Tensor,
        module: ModuleConfig,
        seed: int,
        bank: Bank | None = None,
        **options: Any,
    ) -> None:
        super().__init__(network, module, seed=seed, **options)
        classifier = classifier_of(network)
        with drawing(seed, "weights", 1):
            nn.init.normal_(classifier.weight, std=DEVIATION)
        if classifier.bias is not None:
            nn.init.zeros_(classifier.bias)
        self.scaled = self.hyper.probe_scale == "unit"
        self.bank = bank
        if self.scaled:
            self.register_buffer("length", torch.ones(()))

    def begin_training(self, updates: int) -> None:
        """Measure the features; a resumed run then loads the first measurement."""
        super().begin_training(updates)
        if not self.scaled:
            return
        bank = require_bank(self, self.bank, "hyper.probe-scale unit")
        squares = measured(self, bank, lambda x: self.features(x).square().sum(1, keepdim=True))
        length = squares.double().mean().sqrt()
        require(
            bool(length > 0), "all features of the training images are 0; probe another network"
        )
        self.length.copy_(length)

    def classify(self, features: Tensor) -> Tensor:
        """Logits ``(rows, K)`` of the network's features ``(rows, C)``."""
        return super().classify(features / self.length if self.scaled else features)

    def deployed(self) -> nn.Module:
        """The network, with a classifier for unscaled features."""
        if not self.scaled:
            return super().deployed()
        network = copy.deepcopy(self.network)
        with torch.no_grad():
            classifier_of(network).weight.div_(self.length)
        return network


class NearestNeighbours(Untrained, _Probe):
    """Weighted votes of the nearest training images.

    Features are in full precision; those of training images are computed once.

    Args:
        network: gives the features; its classifier is not used.
        bank: gives the features of training images.
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
        super().__init__(network, module, **options)
        self.num_classes, self.bank = len(class_counts), bank
        # Not part of checkpoints: as large as the training set, and computed from the network.
        self.register_buffer("bank_features", None, persistent=False)
        self.register_buffer("bank_labels", None, persistent=False)
        self.requires_grad_(False)

    def features(self, x: Tensor) -> Tensor:
        """Pooled features ``(N, C)`` in single precision."""
        with torch.autocast(x.device.type, enabled=False):
            return super().features(x.float()).float()

    def load_state_dict(self, *args: Any, **options: Any) -> Any:
        """Other weights give other features, so this empties the bank."""
        self.bank_features = self.bank_labels = None
        return super().load_state_dict(*args, **options)

    def before_evaluation(self) -> None:
        """Fill the bank."""
        self._filled()

    @torch.no_grad()
    def predict(self, x: Tensor) -> Tensor:
        """Logarithms ``(N, K)`` of each class's share of the votes."""
        bank, labels = self._filled()
        k, temperature = self.hyper.neighbours, self.hyper.vote_temperature
        with torch.autocast(x.device.type, enabled=False):
            found = votes(self.features(x), bank, labels, self.num_classes, k, temperature)
        return log_shares(found)

    def deployed(self) -> nn.Module:
        raise ValueError(
            "knn answers by votes of all training images, which no exported network has. "
            "Export the run that this one starts from."
        )

    def relations(self) -> Relations | None:
        """None: the votes of neighbours are not a classifier of features."""
        return None

    def why_eager(self) -> str | None:
        return "nothing is trained"

    @torch.no_grad()
    def _filled(self) -> tuple[Tensor, Tensor]:
        if self.bank_features is None or self.bank_labels is None:
            self.bank_features, self.bank_labels = self.bank(self.features)
        return self.bank_features, self.bank_labels
