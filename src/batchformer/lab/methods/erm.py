"""Cross-entropy and Balanced Softmax, on batches that may be mixed by Mixup or CutMix."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from batchformer.lab.data.transforms.mixup import draw_mix, mix_batch
from batchformer.lab.engine.optimizer_step import Batch, OptimizerStep
from batchformer.lab.losses.long_tailed import BalancedSoftmax
from batchformer.lab.methods.classifier import Classifier

# Classifiers that can train on batches mixed by Mixup or CutMix.


class MixingClassifier(Classifier):
    """A classifier whose criterion accepts soft targets ``(N, K)``.

    With ``hyper.mixup`` or ``hyper.cutmix`` an update mixes its batch with probability
    ``hyper.mix_prob``. The mix is the first random draw of an update, and an update is seeded by
    its run's seed and its step, so all arms see the same images and targets. With
    ``train.accumulate`` each part is mixed with itself, as on several devices.

    Args:
        network: as for :class:`Classifier`.
        criterion: of logits ``(N, K)`` and targets ``(N,)`` or ``(N, K)``.
        classes: K.
        options: of :class:`Classifier`.
    """

    def __init__(
        self, network: nn.Module, criterion: nn.Module, classes: int, **options: Any
    ) -> None:
        super().__init__(network, criterion, classes=classes, **options)

    def update(
        self, batch: Batch, optimizers: dict[str, Optimizer], mechanics: OptimizerStep
    ) -> dict[str, Tensor]:
        hyper = self.hyper
        if (hyper.mixup or hyper.cutmix) and hyper.mix_prob:
            batch = self.mixed(batch, mechanics.config.accumulate)
        return super().update(batch, optimizers, mechanics)

    def mixed(self, batch: Batch, parts: int = 1) -> Batch:
        """The batch with mixed images and soft targets (N, K).

        Args:
            batch: ``x`` (N, C, H, W) and ``y`` (N,).
            parts: in which it will be trained; each has a draw of its own.
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


# Cross-entropy: empirical risk minimisation without regard to the class frequencies.


class CrossEntropy(MixingClassifier):
    """Cross-entropy, with Mixup, CutMix and smoothed targets where ``hyper`` asks for them.

    ``class_counts`` tells the number of classes alone.
    """

    def __init__(self, network: nn.Module, class_counts: Tensor, **options: Any) -> None:
        hyper = options.get("hyper")
        # Smoothing is linear, so that mixed targets may be smoothed as well as smooth ones mixed.
        smoothing = hyper.smoothing if hyper is not None else 0.0
        criterion = nn.CrossEntropyLoss(label_smoothing=smoothing)
        super().__init__(network, criterion, len(class_counts), **options)


# Balanced Softmax: cross-entropy on logits shifted by the log of the class counts.


class BalancedSoftmaxMethod(MixingClassifier):
    """One-stage Balanced Softmax; plain logits at test. Batches may be mixed by Mixup or CutMix."""

    def __init__(self, network: nn.Module, class_counts: Tensor, **options: Any) -> None:
        criterion = BalancedSoftmax(class_counts, allow_empty=True)
        super().__init__(network, criterion, len(class_counts), **options)
