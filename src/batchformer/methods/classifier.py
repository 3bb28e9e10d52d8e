"""A classifier with BatchFormer between its pooled features and its head."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from batchformer.engine.mechanics import Batch
from batchformer.engine.method import Method
from batchformer.methods.config import ModuleConfig
from batchformer.module import BatchFormer, two_streams
from batchformer.randomness import drawing
from batchformer.streams import stream_loss


class Classifier(Method):
    """One network, one head for both streams, one criterion.

    Args:
        network: with timm's contract: ``forward_features``, ``forward_head(x, pre_logits=True)``,
            ``get_classifier`` and ``num_features``.
        criterion: of logits and targets.
        module: BatchFormer's settings; ``enabled=False`` is the baseline.
        seed: the encoder's initial weights draw from it separately from the network's.
    """

    def __init__(
        self, network: nn.Module, criterion: nn.Module, module: ModuleConfig, seed: int
    ) -> None:
        super().__init__()
        self.network, self.criterion, self.config = network, criterion, module
        self.module_lr_factor = module.lr_factor
        self.encoder: BatchFormer | None = None
        if module.enabled:
            with drawing(seed, "module weights"):
                self.encoder = BatchFormer(
                    int(network.num_features),  # type: ignore[arg-type]
                    module.heads,
                    module.layers,
                    module.dropout,
                    attend=module.attend,
                )
            self.encoder.requires_grad_(module.trained)

    def features(self, x: Tensor) -> Tensor:
        """Pooled features ``(N, C)`` of images ``(N, channels, H, W)``."""
        network: Any = self.network
        pooled: Tensor = network.forward_head(network.forward_features(x), pre_logits=True)
        return pooled

    def classify(self, features: Tensor) -> Tensor:
        """Logits ``(rows, K)`` of features ``(rows, C)``."""
        network: Any = self.network
        logits: Tensor = network.get_classifier()(features)
        return logits

    def forward(self, x: Tensor) -> Tensor:
        """Logits as trained: ``(2N, K)`` in training with shared streams, else ``(N, K)``."""
        features = self.features(x)
        if self.encoder is not None:
            mixed_only = self.config.streams == "mixed_only"
            features = self.encoder(features) if mixed_only else two_streams(features, self.encoder)
        return self.classify(features)

    def step(self, batch: Batch) -> dict[str, Tensor]:
        loss = stream_loss(
            self.criterion,
            self(batch["x"]),
            batch["y"],
            loss_scale=self.config.loss_scale,
            mixed_weight=self.config.mixed_weight,
        )
        return {"loss": loss}

    def predict(self, x: Tensor) -> Tensor:
        return self.classify(self.features(x))
