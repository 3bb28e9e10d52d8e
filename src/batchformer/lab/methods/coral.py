"""CORAL: features whose mean and covariance are alike in all domains."""

from __future__ import annotations

from torch import Tensor

from batchformer.lab.losses.domains import coral
from batchformer.lab.methods.by_domain import Penalised


class Coral(Penalised):
    """Cross-entropy and the distance of the domains' moments, of weight ``hyper.penalty``."""

    def penalty(self, features: Tensor, logits: Tensor, targets: Tensor) -> Tensor:
        return coral(features)
