"""Tau-normalisation (Kang et al., 2020): class weights of nearly one length, no training."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from batchformer.lab.config.training import OptimConfig
from batchformer.lab.engine.optimizer_step import Batch, Mechanics
from batchformer.lab.methods.frozen import OnFrozenFeatures
from batchformer.lab.methods.head import classifier_of


@torch.no_grad()
def tau_normalise(classifier: nn.Linear, tau: float) -> None:
    """Divide each class's weights by the tau-th power of their length, and drop the biases.

    Frequent classes have longer weights: 0 leaves them, 1 makes all lengths one.

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


class TauNormalised(OnFrozenFeatures):
    """The network of an earlier run with its classifier normalised once; updates change nothing."""

    def __init__(self, network: nn.Module, class_counts: Tensor, **options: Any) -> None:
        super().__init__(network, nn.CrossEntropyLoss(), **options)
        tau_normalise(classifier_of(network), self.hyper.tau)
        self.requires_grad_(False)

    def optimizers(self, optim: OptimConfig) -> dict[str, Optimizer]:
        return {}

    @torch.no_grad()
    def update(
        self, batch: Batch, optimizers: dict[str, Optimizer], mechanics: Mechanics
    ) -> dict[str, Tensor]:
        """The loss of the batch, for the log."""
        with mechanics.autocast():
            return {"loss": self.loss(self.predict(batch["x"]), batch["y"])}
