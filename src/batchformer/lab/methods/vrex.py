"""V-REx: risks that are alike in all domains."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from batchformer.lab.losses.domains import vrex
from batchformer.lab.methods.by_domain import Penalised


class VRex(Penalised):
    """Cross-entropy and the variance of the domains' cross-entropies.

    A domain's cross-entropy is the mean over its rows, plain and mixed ones alike, however the
    settings weigh the streams in the loss itself.
    """

    delayed = True

    def penalty(self, features: Tensor, logits: Tensor, targets: Tensor) -> Tensor:
        losses = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
        return vrex(losses.view(targets.shape).mean(1))
