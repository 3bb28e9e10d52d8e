"""Linear probe: what a linear classifier finds in features that another run has learnt."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from batchformer.methods.config import ModuleConfig
from batchformer.methods.frozen import OnFrozenFeatures
from batchformer.methods.head import classifier_of
from batchformer.randomness import drawing

#: Standard deviation of the classifier's first weights, by the protocol of MoCo.
DEVIATION = 0.01


class LinearProbe(OnFrozenFeatures):
    """Cross-entropy on a new linear classifier; the network is frozen and always in eval.

    There is no BatchFormer here, whatever `module` says: an arm names the run whose features are
    probed, and all arms are probed alike.
    """

    def __init__(
        self,
        network: nn.Module,
        class_counts: Tensor,
        module: ModuleConfig,
        seed: int,
        **options: Any,
    ) -> None:
        absent = ModuleConfig(enabled=False)
        super().__init__(network, nn.CrossEntropyLoss(), module=absent, seed=seed, **options)
        classifier = classifier_of(network)
        with drawing(seed, "weights", 1):
            nn.init.normal_(classifier.weight, std=DEVIATION)
        if classifier.bias is not None:
            nn.init.zeros_(classifier.bias)
        self.train()  # a module begins in training with all its parts

    def train(self, mode: bool = True) -> LinearProbe:
        super().train(mode)
        self.network.eval()
        return self
