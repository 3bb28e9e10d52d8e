"""RIDE: experts on a shared trunk, with margins, driven apart, re-weighted at the end."""

from __future__ import annotations

from collections.abc import Hashable

import torch
from torch import Tensor, nn

from batchformer.insight.relations import Relations
from batchformer.lab.config.methods import MethodConfig, ModuleConfig
from batchformer.lab.engine.method import Method
from batchformer.lab.engine.optimizer_step import Batch
from batchformer.lab.losses.ride import RIDE, ride_with_teacher
from batchformer.lab.methods.encoder import make_encoder
from batchformer.lab.models.ride import RideNetwork
from batchformer.nn.module import two_streams
from batchformer.nn.streams import stream_loss


class RideMethod(Method):
    """E experts, one BatchFormer for all of them, each expert's features mixed by themselves.

    Args:
        network: experts with a classifier each.
        class_counts: (K,) training images of each class.
        module: BatchFormer's settings; ``streams="mixed_only"`` is the paper's on ImageNet-LT and
            iNaturalist, CIFAR needs the shared classifier.
        seed: of the encoder's initial weights.
        hyper: margins, diversity, the epoch of re-weighting, and the distillation.
        teacher: a trained network whose answers the experts' mean follows, or None.
    """

    def __init__(
        self,
        network: nn.Module,
        class_counts: Tensor,
        module: ModuleConfig,
        seed: int,
        hyper: MethodConfig | None = None,
        teacher: nn.Module | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(network, RideNetwork):
            raise ValueError(
                f"ride needs a network of several experts, such as ride_resnet32; "
                f"{type(network).__name__} has one classifier."
            )
        self.network, self.config = network, module
        self.hyper = hyper or MethodConfig()
        self.module_lr_factor = module.lr_factor
        self.criterion = RIDE(
            class_counts,
            diversity=self.hyper.diversity,
            temperature_factor=self.hyper.temperature_factor,
            largest=self.hyper.margin,
            scale=self.hyper.scale,
            beta=self.hyper.reweight_beta,
            allow_empty=True,
        )
        # Features are (E, N, C): the encoder treats experts as positions that never meet.
        self.encoder = make_encoder(network.num_features, module, seed, batch_axis=1)
        self.teacher = None if teacher is None else teacher.requires_grad_(False)

    def train(self, mode: bool = True) -> RideMethod:
        super().train(mode)
        if self.teacher is not None:
            self.teacher.train(mode and self.hyper.teacher_mode == "train")
        return self

    def expert_logits(self, x: Tensor) -> Tensor:
        """Logits as trained: ``(E, 2N, K)`` in training with shared streams, else ``(E, N, K)``."""
        features = self.network.expert_features(x)
        if self.encoder is not None:
            mixed_only = self.config.streams == "mixed_only"
            features = self.encoder(features) if mixed_only else two_streams(features, self.encoder)
        return self.network.expert_logits(features)

    def forward(self, x: Tensor) -> Tensor:
        """The experts' mean, ``(2N, K)`` in training with shared streams, else ``(N, K)``."""
        return self.expert_logits(x).mean(0)

    def step(self, batch: Batch) -> dict[str, Tensor]:
        rows = self.expert_logits(batch["x"]).transpose(0, 1)
        loss = stream_loss(
            self._criterion,
            rows,
            (batch["y"], self._teacher_logits(batch["x"])),
            loss_scale=self.config.loss_scale,
            mixed_weight=self.config.mixed_weight,
        )
        return {"loss": loss}

    def _criterion(self, rows: Tensor, targets: tuple[Tensor, Tensor | None]) -> Tensor:
        """Loss of rows (N, E, K) of one stream."""
        logits, (labels, teacher) = rows.transpose(0, 1), targets
        loss: Tensor = self.criterion(logits, labels)
        if teacher is None:
            return loss
        return ride_with_teacher(
            loss,
            logits,
            teacher,
            temperature=self.hyper.distillation_temperature,
            factor=self.hyper.distillation_factor,
            distillation_count=self.hyper.distillation_count,
        )

    def _teacher_logits(self, x: Tensor) -> Tensor | None:
        if self.teacher is None:
            return None
        with torch.no_grad():
            logits: Tensor = self.teacher(x)
        return logits

    def predict(self, x: Tensor) -> Tensor:
        logits: Tensor = self.network(x)
        return logits

    def relations(self) -> Relations | None:
        """Of the experts' mean, with the loss that one expert with these logits would have."""

        def features(x: Tensor) -> Tensor:
            return self.network.expert_features(x).transpose(0, 1)

        def classify(rows: Tensor) -> Tensor:
            return self.network.expert_logits(rows.transpose(0, 1)).mean(0)

        def loss(logits: Tensor, labels: Tensor) -> Tensor:
            value: Tensor = self.criterion(logits.unsqueeze(0), labels)
            return value

        mixed_only = self.config.streams == "mixed_only"
        return Relations(self, features, classify, loss, self.encoder, mixed_only)

    def begin_epoch(self, epoch: int) -> None:
        self.criterion.reweighted = epoch >= self.hyper.reweight_epoch

    def phase(self) -> Hashable:
        return self.criterion.reweighted
