"""A classifier with BatchFormer between its pooled features and its head."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from batchformer.insight.relations import Relations
from batchformer.lab.config.methods import MethodConfig, ModuleConfig
from batchformer.lab.config.training import OptimConfig
from batchformer.lab.engine.method import Method, Untrained
from batchformer.lab.engine.optimizer_step import Batch
from batchformer.lab.losses.attention_labels import attended_labels, permute_others
from batchformer.lab.methods.class_context import ClassContext, class_row_loss
from batchformer.lab.models.heads import feature_width
from batchformer.nn.module import BatchFormer, two_streams
from batchformer.nn.randomness import drawing
from batchformer.nn.streams import stream_loss, weigh_streams
from batchformer.plug.attach import MODULE, attach
from batchformer.plug.classifier import AttachError
from batchformer.plug.export import detach
from batchformer.plug.insertion import WithBatchFormer

#: Factor of a loss that is one mean over all 2N rows of both streams, by ``module.loss_scale``.
JOINT_SCALES = {"mean": 1.0, "sum": 2.0}


class Classifier(Method):
    """One network, one head for both streams, one criterion.

    BatchFormer is the child ``encoder``, between pooled features and head. With ``module.at`` it
    stands inside the network instead, whose pooled features then have 2N rows in training.

    Args:
        network: with timm's contract: ``forward_features``, ``forward_head(x, pre_logits=True)``,
            ``get_classifier``, ``num_features``, and ``head_hidden_size`` if its head widens them.
        module: BatchFormer's settings; ``enabled=False`` is the baseline.
        groups: G equal blocks of rows in a batch, one domain each; some methods compare domains.
        classes: K, for class rows in the batch (``module.context``) and soft labels.
    """

    def __init__(
        self,
        network: nn.Module,
        criterion: nn.Module,
        module: ModuleConfig,
        seed: int,
        hyper: MethodConfig,
        groups: int = 1,
        classes: int = 0,
    ) -> None:
        super().__init__()
        if not hasattr(network, "forward_head"):
            raise ValueError(
                f"{type(self).__name__} needs a network with one classifier and timm's contract, "
                f"such as resnet32, and {type(network).__name__} has no forward_head; one of "
                "several experts is for the method ride."
            )
        # Nearest neighbours are untrained and do not use the classifier.
        if isinstance(head_of(network), nn.Conv2d) and not isinstance(self, Untrained):
            raise ValueError(
                f"{type(network).__name__} classifies maps by a convolution, and "
                f"{type(self).__name__} needs a classifier of pooled features: set --model to "
                "another network, such as resnet50."
            )
        self.network, self.criterion, self.config = network, criterion, module
        self.hyper = hyper
        self.groups, self.classes = groups, classes
        self.module_lr_factor = module.lr_factor
        self.encoder: BatchFormer | None = None
        if module.enabled and module.at:
            insert_inside(network, module, seed)
        else:
            self.encoder = make_encoder(feature_width(network), module, seed, classes=classes)
        self.dropout = nn.Dropout(self.hyper.feature_dropout)

    def features(self, x: Tensor) -> Tensor:
        """Pooled features ``(N, C)`` of images ``(N, channels, H, W)``."""
        return pooled_features(self.network, x)

    def classify(self, features: Tensor) -> Tensor:
        """Logits ``(rows, K)`` of features ``(rows, C)``."""
        logits: Tensor = head_of(self.network)(features)
        return logits

    def streams(self, features: Tensor) -> Tensor:
        """What the head is trained on: ``(2N, C)`` of features ``(N, C)`` with shared streams.

        In training ``hyper.feature_dropout`` acts on every row, each stream with its own mask.
        """
        rows: Tensor = self.dropout(apply_encoder(self.encoder, features, self.config))
        return rows

    def forward(self, x: Tensor) -> Tensor:
        """Logits as trained: ``(2N, K)`` in training with shared streams, else ``(N, K)``."""
        return self.classify(self.streams(self.features(x)))

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The criterion over one stream or both, as the settings weigh them."""
        return loss_of_streams(self.criterion, logits, targets, self.config)

    def step(self, batch: Batch) -> dict[str, Tensor]:
        encoder, module = self.encoder, self.config
        if encoder is not None and encoder.training:
            if isinstance(encoder, ClassContext):
                return self._step_with_classes(batch, encoder)
            if module.views > 1 or module.mixed_labels != "own":
                return {"loss": self._loss_of_views(batch, encoder)}
        return {"loss": self.loss(self(batch["x"]), batch["y"])}

    def _loss_of_views(self, batch: Batch, encoder: BatchFormer) -> Tensor:
        """Loss of the plain stream and ``module.views`` mixed ones, which count as one stream."""
        module, targets = self.config, batch["y"]
        features = self.features(batch["x"])
        views = [self._view(features, targets, encoder) for _ in range(module.views)]
        mixed, labels = (torch.cat(parts) for parts in zip(*views, strict=True))
        plain = features[:0] if module.streams == "mixed_only" else features
        logits = self.classify(self.dropout(torch.cat((plain, mixed))))
        of_plain, of_mixed = logits.tensor_split((len(plain),))
        mixed_loss: Tensor = self.criterion(of_mixed, labels)
        if module.streams == "mixed_only":
            return mixed_loss
        plain_loss = self.criterion(of_plain, targets)
        return weigh_streams(plain_loss, mixed_loss, module.loss_scale, module.mixed_weight)

    def _view(
        self, features: Tensor, targets: Tensor, encoder: BatchFormer
    ) -> tuple[Tensor, Tensor]:
        """One pass of the encoder: mixed rows (N, C), and their targets (N,) or (N, K)."""
        module = self.config
        if module.mixed_labels == "own":
            return encoder(features), targets
        mixed, weights = encoder.mix(features, dropout=encoder.dropout, return_weights=True)
        attention = weights[-1, 0].mean(0).detach()  # of the last layer, mean over heads
        if module.mixed_labels == "random":
            attention = permute_others(attention)
        return mixed, attended_labels(attention, targets, self.classes, module.label_share)

    def _step_with_classes(self, batch: Batch, encoder: ClassContext) -> dict[str, Tensor]:
        """The loss of the samples, plus the loss of the class rows in their batch."""
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

    def deployed(self) -> nn.Module:
        inside = self.config.enabled and self.config.at
        return detach(copy.deepcopy(self.network)) if inside else self.network

    def relations(self) -> Relations | None:
        mixed_only = self.config.streams == "mixed_only"
        encoder = None if isinstance(self.encoder, Unmixed) else self.encoder
        parts = (self.features, self.classify, self.criterion, encoder)
        context = self.encoder.class_rows() if isinstance(self.encoder, ClassContext) else None
        return Relations(self, *parts, mixed_only, context)

    def slow_backbone_groups(self, optim: OptimConfig, *parts: nn.Module) -> list[dict[str, Any]]:
        """Parameter groups in which the network learns at a lower rate than what follows it.

        Args:
            optim: its rate is that of `parts`. The network learns at ``hyper.backbone_lr_factor``
                times it, and the encoder at its own factor. Parts may belong to the network, such
                as its classifier.
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
        after = {id(p) for p in trained["model"]}
        trained["backbone"] = [p for p in trained["backbone"] if id(p) not in after]
        return [
            {"params": trained[name], "lr": optim.lr * factor, "name": name}
            for name, (_, factor) in groups.items()
            if trained[name]
        ]


def pooled_features(network: Any, x: Tensor) -> Tensor:
    """Pooled features ``(N, C)`` of images, by a network with timm's contract."""
    features: Tensor = network.forward_head(network.forward_features(x), pre_logits=True)
    return features


def head_of(network: Any) -> nn.Module:
    """The network's classifier, whatever its type."""
    head: nn.Module = network.get_classifier()
    return head


def loss_of_streams(
    criterion: Callable[[Any, Any], Tensor], outputs: Tensor, targets: Any, module: ModuleConfig
) -> Tensor:
    """The criterion over one stream or both, as the settings weigh them."""
    scale, weight = module.loss_scale, module.mixed_weight
    return stream_loss(criterion, outputs, targets, loss_scale=scale, mixed_weight=weight)


def apply_encoder(encoder: BatchFormer | None, features: Tensor, module: ModuleConfig) -> Tensor:
    """The rows that heads are trained on: plain features, mixed ones or both, by the settings."""
    if encoder is None:
        return features
    if module.streams == "mixed_only":
        mixed: Tensor = encoder(features)
        return mixed
    return two_streams(features, encoder)


def make_encoder(
    dim: int,
    module: ModuleConfig,
    seed: int,
    batch_axis: int = 0,
    classes: int = 0,
    scale: float = 1.0,
) -> BatchFormer | None:
    """BatchFormer for features of `dim` channels, or None for the baseline.

    Its initial weights come from their own random stream, so adding it changes no other weight.

    Args:
        classes: K, needed if ``module.context`` is "classes".
        scale: passed on to :class:`BatchFormer`.
    """
    if not module.enabled:
        return None
    if module.encoder in ("dropout", "norm"):
        return Unmixed(dim, module.dropout, batch_axis, normalised=module.encoder == "norm")
    sizes = (dim, module.heads, module.layers, module.dropout)
    with drawing(seed, "module weights"):
        encoder: BatchFormer
        options: dict[str, Any] = {"attend": module.attend, "copy_layers": module.copy_layers}
        if module.context == "classes":
            momentum = module.context_momentum
            encoder = ClassContext(*sizes, classes=classes, momentum=momentum, **options)
        else:
            exchange = module.exchange
            options |= {"batch_axis": batch_axis, "exchange": exchange, "scale": scale}
            encoder = BatchFormer(*sizes, **options)
    return encoder.requires_grad_(module.trained)


def insert_inside(
    network: nn.Module, module: ModuleConfig, seed: int, below: str = "", example: Any = None
) -> None:
    """Put BatchFormer before the modules that ``module.at`` names, in place.

    In training the network then gives 2N rows for N images, or N mixed rows. In eval it is the
    plain network. Initial weights come from the same random stream as :func:`make_encoder`'s.

    Args:
        below: prefix in the network of the names in ``module.at``.
        example: a batch in the form that the network takes, if none can be guessed.
    """
    with drawing(seed, "module weights"):
        try:
            attach(
                network,
                at=[below + name for name in module.at],
                heads=module.heads,
                layers=module.layers,
                dropout=module.dropout,
                attend=module.attend,
                exchange=module.exchange,
                streams=module.streams,
                share=module.share,
                example=example,
                verbose=False,
            )
        except AttachError as error:  # without the prefix, as --module.at has them
            raise AttachError(str(error).replace(f"'{below}", "'")) from error
    for part in list(network.modules()):
        if isinstance(part, WithBatchFormer):
            part._place.marks = False  # marks remind users to double targets; the loss here does
        for name, encoder in list(part.named_children()):
            if isinstance(encoder, BatchFormer):
                encoder.requires_grad_(module.trained)
                if module.encoder == "none":
                    setattr(part, name, Unmixed(encoder.dim, 0.0, encoder.batch_axis))


class Unmixed(BatchFormer):
    """No encoder at all: mixed rows are plain rows after dropout, optionally normalised."""

    def __init__(self, dim: int, dropout: float, batch_axis: int, normalised: bool = False) -> None:
        # On the meta device nothing is drawn or stored for the layers that are dropped.
        options: dict[str, Any] = {"attend": "self", "batch_axis": batch_axis, "device": "meta"}
        super().__init__(dim, heads=1, dropout=dropout, **options)
        self.layers, self.normalised = nn.ModuleList(), normalised

    def forward(self, x: Tensor, visible: Tensor | None = None) -> Tensor:
        """Rows of ``x`` (..., C) in training; ``x`` itself in eval."""
        if not self.training:
            return x
        rows = F.dropout(x, self.dropout) if self.dropout else x
        return F.layer_norm(rows, x.shape[-1:]).to(x.dtype) if self.normalised else rows


def classifier_of(network: nn.Module) -> nn.Linear:
    """The network's linear classifier; an error names what was found instead."""
    found = head_of(network)
    if not isinstance(found, nn.Linear):
        raise ValueError(
            f"This method needs a linear classifier; {type(network).__name__} has "
            f"{type(found).__name__}. Start from a method that trains one, such as cross_entropy."
        )
    return found
