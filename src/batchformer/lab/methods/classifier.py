"""A classifier with BatchFormer between its pooled features and its head."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from batchformer.insight.relations import Relations
from batchformer.lab.config.methods import MethodConfig, ModuleConfig
from batchformer.lab.config.training import OptimConfig
from batchformer.lab.engine.method import Method
from batchformer.lab.engine.optimizer_step import Batch
from batchformer.lab.methods.class_context import ClassContext, class_row_loss
from batchformer.lab.methods.encoder import make_encoder
from batchformer.nn.module import two_streams
from batchformer.nn.streams import stream_loss
from batchformer.plug.attach import MODULE


class Classifier(Method):
    """One network, one head for both streams, one criterion.

    Args:
        network: with timm's contract: ``forward_features``, ``forward_head(x, pre_logits=True)``,
            ``get_classifier`` and ``num_features``.
        criterion: of logits and targets.
        module: BatchFormer's settings; ``enabled=False`` is the baseline.
        seed: the encoder's initial weights draw from it separately from the network's.
        hyper: the method's own settings.
        groups: G, equal blocks of rows that a batch consists of, one domain each; for methods that
            compare domains.
        classes: K, for methods that class rows can join (``module.context``).
    """

    def __init__(
        self,
        network: nn.Module,
        criterion: nn.Module,
        module: ModuleConfig,
        seed: int,
        hyper: MethodConfig | None = None,
        groups: int = 1,
        classes: int = 0,
    ) -> None:
        super().__init__()
        if not hasattr(network, "forward_head"):
            raise ValueError(
                f"{type(self).__name__} needs a network with one classifier, such as resnet32; "
                f"{type(network).__name__} has several experts and is for the method ride."
            )
        self.network, self.criterion, self.config = network, criterion, module
        self.hyper = hyper or MethodConfig()
        self.groups, self.classes = groups, classes
        self.module_lr_factor = module.lr_factor
        width = int(network.num_features)  # type: ignore[arg-type]
        self.encoder = make_encoder(width, module, seed, classes=classes)
        self.dropout = nn.Dropout(self.hyper.feature_dropout)

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

    def streams(self, features: Tensor) -> Tensor:
        """What the head is trained on: ``(2N, C)`` of features ``(N, C)`` with shared streams.

        In training ``hyper.feature_dropout`` acts on every row, each stream with its own mask.
        """
        rows = features
        if self.encoder is not None:
            mixed_only = self.config.streams == "mixed_only"
            rows = self.encoder(features) if mixed_only else two_streams(features, self.encoder)
        kept: Tensor = self.dropout(rows)
        return kept

    def forward(self, x: Tensor) -> Tensor:
        """Logits as trained: ``(2N, K)`` in training with shared streams, else ``(N, K)``."""
        return self.classify(self.streams(self.features(x)))

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The criterion over one stream or both, as the settings weigh them."""
        return stream_loss(
            self.criterion,
            logits,
            targets,
            loss_scale=self.config.loss_scale,
            mixed_weight=self.config.mixed_weight,
        )

    def step(self, batch: Batch) -> dict[str, Tensor]:
        if isinstance(self.encoder, ClassContext) and self.encoder.training:
            return self._step_with_classes(batch, self.encoder)
        return {"loss": self.loss(self(batch["x"]), batch["y"])}

    def _step_with_classes(self, batch: Batch, encoder: ClassContext) -> dict[str, Tensor]:
        """The loss of the samples, and that of the class rows that joined their batch."""
        features = self.features(batch["x"])
        encoder.update_means(features, batch["y"])
        mixed, classes = encoder.mix_with_classes(features)
        streams = (mixed,) if self.config.streams == "mixed_only" else (features, mixed)
        logits = self.classify(self.dropout(torch.cat((*streams, classes))))
        of_samples, of_classes = logits.tensor_split((-len(classes),))
        class_loss = class_row_loss(of_classes, encoder.seen)
        loss = self.loss(of_samples, batch["y"]) + self.config.context_weight * class_loss
        return {"loss": loss, "class_loss": class_loss}

    def predict(self, x: Tensor) -> Tensor:
        return self.classify(self.features(x))

    def relations(self) -> Relations | None:
        mixed_only = self.config.streams == "mixed_only"
        parts = (self.features, self.classify, self.criterion, self.encoder)
        context = self.encoder.class_rows() if isinstance(self.encoder, ClassContext) else None
        return Relations(self, *parts, mixed_only, context)

    def on_a_backbone(self, optim: OptimConfig, *parts: nn.Module) -> list[dict[str, Any]]:
        """Parameter groups where the network is slower than what stands on it.

        Args:
            optim: its rate is that of `parts`; the network's is ``hyper.backbone_lr_factor`` of it,
                the encoder's its own factor.
            parts: what stands on the network.
        """
        groups: dict[str, tuple[list[nn.Module], float]] = {
            "backbone": ([self.network], self.hyper.backbone_lr_factor),
            "model": ([*parts], 1.0),
            MODULE: ([] if self.encoder is None else [self.encoder], self.module_lr_factor),
        }
        trained = {
            name: [p for module in modules for p in module.parameters() if p.requires_grad]
            for name, (modules, _) in groups.items()
        }
        return [
            {"params": trained[name], "lr": optim.lr * factor, "name": name}
            for name, (_, factor) in groups.items()
            if trained[name]
        ]
