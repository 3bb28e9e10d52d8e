"""Cross-entropy, Balanced Softmax (both on batches that may be mixed) and LDAM."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from batchformer.lab.config.methods import MethodConfig, reweights
from batchformer.lab.data.transforms.mixup import draw_mix, mix_batch
from batchformer.lab.engine.optimizer_step import Batch, OptimizerStep
from batchformer.lab.losses.long_tailed import LDAM, BalancedSoftmax
from batchformer.lab.methods.classifier import Classifier, head_of
from batchformer.lab.models.heads import CosineClassifier, feature_width, replace_classifier
from batchformer.nn.randomness import drawing


class MixingClassifier(Classifier):
    """A classifier whose criterion accepts soft targets ``(N, K)``.

    With ``hyper.mixup`` or ``hyper.cutmix`` an update mixes its batch with probability
    ``hyper.mix_prob``. The mix is the first random draw of an update, which is seeded by the run's
    seed and the step. So all arms see the same images and targets. With ``train.accumulate`` each
    part is mixed within itself, as on several devices.

    Args:
        criterion: of logits ``(N, K)`` and targets ``(N,)`` or ``(N, K)``.
    """

    def __init__(
        self, network: nn.Module, criterion: nn.Module, *, hyper: MethodConfig, **options: Any
    ) -> None:
        super().__init__(network, criterion, hyper=hyper, **options)
        if hyper.feature_norm:
            # The keys change, so that no network without the norm loads this classifier.
            norm = nn.LayerNorm(feature_width(network), elementwise_affine=False)
            replace_classifier(network, nn.Sequential(norm, head_of(network)))

    def update(
        self, batch: Batch, optimizers: dict[str, Optimizer], optimizer_step: OptimizerStep
    ) -> dict[str, Tensor]:
        hyper = self.hyper
        if (hyper.mixup or hyper.cutmix) and hyper.mix_prob:
            batch = self.mixed(batch, optimizer_step.config.accumulate)
        return super().update(batch, optimizers, optimizer_step)

    def mixed(self, batch: Batch, parts: int = 1) -> Batch:
        """The batch with mixed images and soft targets (N, K).

        Args:
            batch: ``x`` (N, C, H, W) and ``y`` (N,).
            parts: number of parts it will be trained in; each has its own draw.
        """
        hyper = self.hyper
        images, targets = [], []
        pieces = zip(batch["x"].chunk(parts), batch["y"].chunk(parts), strict=True)
        with torch.no_grad():
            for x, y in pieces:
                height, width = x.shape[-2:]
                mix = draw_mix(
                    height,
                    width,
                    mixup=hyper.mixup,
                    cutmix=hyper.cutmix,
                    switch=hyper.mix_switch,
                    device=x.device,
                    probability=hyper.mix_prob,
                )
                x, y = mix_batch(x, y, mix, self.classes)
                images.append(x)
                targets.append(y)
        return {**batch, "x": torch.cat(images), "y": torch.cat(targets)}


class CrossEntropy(MixingClassifier):
    """Cross-entropy, with Mixup, CutMix and smoothed targets where ``hyper`` asks for them.

    Only the length of ``class_counts`` is used.
    """

    def __init__(
        self, network: nn.Module, class_counts: Tensor, hyper: MethodConfig, **options: Any
    ) -> None:
        # Smoothing is linear: smoothing mixed targets equals mixing smoothed ones.
        criterion = nn.CrossEntropyLoss(label_smoothing=hyper.smoothing)
        classes = len(class_counts)
        super().__init__(network, criterion, hyper=hyper, classes=classes, **options)


class BalancedSoftmaxMethod(MixingClassifier):
    """Cross-entropy on logits plus log class counts; plain logits at test.

    Batches may be mixed by Mixup or CutMix.
    """

    def __init__(self, network: nn.Module, class_counts: Tensor, **options: Any) -> None:
        criterion = BalancedSoftmax(class_counts)
        super().__init__(network, criterion, classes=len(class_counts), **options)


# LDAM-DRW: margins for rare classes from the start, weights for them at the end.


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
        hyper: MethodConfig,
        **options: Any,
    ) -> None:
        margins = {"largest": hyper.margin, "scale": hyper.scale, "beta": hyper.reweight_beta}
        criterion = LDAM(class_counts, **margins)
        super().__init__(network, criterion, seed=seed, hyper=hyper, **options)
        with drawing(seed, "weights", 1):
            cosines = CosineClassifier(feature_width(network), len(class_counts), hyper.scale)
            replace_classifier(network, cosines)

    def begin_epoch(self, epoch: int) -> None:
        self.criterion.reweighted = epoch >= self.hyper.reweight_epoch

    def phase(self) -> Hashable:
        return self.criterion.reweighted
