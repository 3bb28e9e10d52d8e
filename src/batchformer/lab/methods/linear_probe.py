"""Linear probe: what a linear classifier finds in features that another run has learnt."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from batchformer.lab.config.methods import ModuleConfig
from batchformer.lab.config.training import require
from batchformer.lab.engine.distributed.sharding import is_sharded
from batchformer.lab.methods.frozen import OnFrozenFeatures
from batchformer.lab.methods.head import classifier_of
from batchformer.nn.randomness import drawing

#: Standard deviation of the classifier's first weights, by the protocol of MoCo.
DEVIATION = 0.01

#: Gives what a function makes of every training image, each once, by that function.
TrainingFeatures = Callable[[Callable[[Tensor], Tensor]], Tensor]


class LinearProbe(OnFrozenFeatures):
    """Cross-entropy on a new linear classifier; the network is frozen and always in eval.

    There is no BatchFormer here, whatever `module` says: an arm names the run whose features are
    probed, and all arms are probed alike.

    With ``hyper.probe_scale="unit"`` features are divided by one number, so that their mean squared
    length over the training images is 1: the same classifiers can be found, at a learning rate that
    does not depend on the scale of the network.

    Args:
        network: gives the features.
        class_counts: (K,) training images of each class.
        module: not used.
        seed: of the classifier's first weights.
        training_features: gives features of the training images; for "unit" alone.
    """

    length: Tensor

    def __init__(
        self,
        network: nn.Module,
        class_counts: Tensor,
        module: ModuleConfig,
        seed: int,
        training_features: TrainingFeatures | None = None,
        **options: Any,
    ) -> None:
        absent = ModuleConfig(enabled=False)
        super().__init__(network, nn.CrossEntropyLoss(), module=absent, seed=seed, **options)
        classifier = classifier_of(network)
        with drawing(seed, "weights", 1):
            nn.init.normal_(classifier.weight, std=DEVIATION)
        if classifier.bias is not None:
            nn.init.zeros_(classifier.bias)
        self.scaled = self.hyper.probe_scale == "unit"
        self.training_features = training_features
        if self.scaled:
            self.register_buffer("length", torch.ones(()))
        self.train()  # a module begins in training with all its parts

    def train(self, mode: bool = True) -> LinearProbe:
        super().train(mode)
        self.network.eval()
        return self

    def begin_training(self, updates: int) -> None:
        """Measure the features; a checkpoint that is gone on from has what was measured first."""
        super().begin_training(updates)
        if not self.scaled:
            return
        require(
            self.training_features is not None,
            "hyper.probe-scale unit measures the features of the training images, which this probe "
            "was not given",
        )
        require(
            not is_sharded(self),
            "hyper.probe-scale unit looks at training images before the training, with the whole "
            "network; set train.parallel ddp",
        )
        assert self.training_features is not None
        squares = self.training_features(self._squared_lengths)
        length = squares.double().mean().sqrt()
        require(
            bool(length > 0), "all features of the training images are 0; probe another network"
        )
        self.length.copy_(length)

    def _squared_lengths(self, x: Tensor) -> Tensor:
        """(N, 1) of images, in the precision of the weights."""
        kind = next(self.network.parameters()).dtype
        with torch.autocast(x.device.type, enabled=False):
            return self.features(x.to(kind)).square().sum(1, keepdim=True)

    def classify(self, features: Tensor) -> Tensor:
        """Logits ``(rows, K)`` of features ``(rows, C)`` as the network gives them."""
        return super().classify(features / self.length if self.scaled else features)

    def deployed(self) -> nn.Module:
        """The network, whose classifier takes features as they are."""
        if not self.scaled:
            return super().deployed()
        network = copy.deepcopy(self.network)
        with torch.no_grad():
            classifier_of(network).weight.div_(self.length)
        return network
