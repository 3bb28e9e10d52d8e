"""LDAM-DRW: margins for rare classes from the start, weights for them at the end."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from torch import Tensor, nn

from batchformer.lab.config.methods import MethodConfig, reweights
from batchformer.lab.losses.long_tailed import LDAM
from batchformer.lab.methods.classifier import Classifier, replace_classifier
from batchformer.lab.models.heads import CosineClassifier
from batchformer.nn.randomness import drawing


def reweighting_warning(method: str, hyper: MethodConfig, epochs: float) -> str:
    """A warning if a training ends before its re-weighting begins; else an empty string.

    >>> reweighting_warning("ldam", MethodConfig(reweight_epoch=160), 2.5)
    're-weighting begins with epoch 160, and this training has 2.5: set --hyper.reweight-epoch'
    >>> reweighting_warning("ldam", MethodConfig(reweight_epoch=160), 200)
    ''
    """
    if not reweights(method) or epochs > hyper.reweight_epoch:
        return ""
    return (
        f"re-weighting begins with epoch {hyper.reweight_epoch}, and this training has "
        f"{epochs:.3g}: set --hyper.reweight-epoch"
    )


class LDAMMethod(Classifier):
    """A cosine classifier trained with margins; from `hyper.reweight_epoch` on, with weights.

    The cosine classifier replaces the network's own; its initial weights depend on the seed alone.
    """

    criterion: LDAM

    def __init__(
        self,
        network: nn.Module,
        class_counts: Tensor,
        seed: int,
        hyper: MethodConfig | None = None,
        **options: Any,
    ) -> None:
        hyper = hyper or MethodConfig()
        criterion = LDAM(
            class_counts,
            largest=hyper.margin,
            scale=hyper.scale,
            beta=hyper.reweight_beta,
            allow_empty=True,
        )
        super().__init__(network, criterion, seed=seed, hyper=hyper, **options)
        with drawing(seed, "weights", 1):
            width = int(network.num_features)  # type: ignore[arg-type]
            replace_classifier(network, CosineClassifier(width, len(class_counts), hyper.scale))

    def begin_epoch(self, epoch: int) -> None:
        self.criterion.reweighted = epoch >= self.hyper.reweight_epoch

    def phase(self) -> Hashable:
        return self.criterion.reweighted
