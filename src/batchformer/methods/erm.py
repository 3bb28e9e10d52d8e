"""Cross-entropy: empirical risk minimisation without regard to the class frequencies."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from batchformer.data.mixup import draw_mix, mix_batch
from batchformer.engine.mechanics import Batch, Mechanics
from batchformer.methods.classifier import Classifier


class CrossEntropy(Classifier):
    """Cross-entropy, with Mixup, CutMix and smoothed targets where ``hyper`` asks for them.

    Batches are mixed before anything else is drawn in an update, so that all arms see the same
    images. With ``train.accumulate`` each part is mixed with itself, as on several devices.
    ``class_counts`` tells the number of classes alone.
    """

    def __init__(self, network: nn.Module, class_counts: Tensor, **options: Any) -> None:
        hyper = options.get("hyper")
        # Smoothing is linear, so that mixed targets may be smoothed as well as smooth ones mixed.
        smoothing = hyper.smoothing if hyper is not None else 0.0
        super().__init__(network, nn.CrossEntropyLoss(label_smoothing=smoothing), **options)
        self.classes = len(class_counts)

    def update(
        self, batch: Batch, optimizers: dict[str, Optimizer], mechanics: Mechanics
    ) -> dict[str, Tensor]:
        if self.hyper.mixup or self.hyper.cutmix:
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
                alphas = hyper.mixup, hyper.cutmix
                mix = draw_mix(height, width, *alphas, hyper.mix_switch, x.device)
                x, y = mix_batch(x, y, mix, self.classes)
                images.append(x)
                targets.append(y)
        return {**batch, "x": torch.cat(images), "y": torch.cat(targets)}
