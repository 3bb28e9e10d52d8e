"""OLTR (Liu et al., 2019): a plain classifier, then attention and a memory of class centroids.

The two stages are two runs: the second starts from the network of the first. BatchFormer acts on
the features before the memory. Both streams go through memory and classifier, and the centroids
are set and trained by plain features alone.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from batchformer.lab.config.methods import MethodConfig
from batchformer.lab.config.training import OptimConfig
from batchformer.lab.engine.optimizer_step import Batch
from batchformer.lab.losses.oltr import centroid_loss
from batchformer.lab.methods.classifier import Classifier, classifier_of, head_of
from batchformer.lab.methods.training_images import Bank, class_means, require_bank
from batchformer.lab.models.heads import WithFeatureLayer, feature_width, replace_classifier
from batchformer.lab.models.oltr import MetaEmbedding, SpatialAttention
from batchformer.nn.randomness import drawing


class PlainStage(Classifier):
    """The first stage: cross-entropy, with a rate for the features and one for the classifier."""

    def __init__(self, network: nn.Module, class_counts: Tensor, **options: Any) -> None:
        super().__init__(network, nn.CrossEntropyLoss(), **options)

    def parameter_groups(self, optim: OptimConfig) -> list[dict[str, Any]]:
        return self.slow_backbone_groups(optim, classifier_of(self.network))


class Oltr(Classifier):
    """The second stage: cross-entropy through the memory, and the loss of the centroids.

    Args:
        network: of the first stage. Its classifier becomes the part of the head that says which
            centroids a feature recalls.
        bank: the training images; the centroids begin as the means of their features.
    """

    def __init__(
        self,
        network: nn.Module,
        class_counts: Tensor,
        seed: int,
        hyper: MethodConfig,
        bank: Bank | None = None,
        **options: Any,
    ) -> None:
        recalling = classifier_of(network)
        trained: list[nn.Module] = []
        with drawing(seed, "weights", 1):
            if hyper.attention_after:
                trained.append(insert_attention(network, hyper))
            if hyper.fresh_layer:
                network = WithFeatureLayer(network, recalling.in_features)
            head = MetaEmbedding(recalling)
        replace_classifier(network, head)
        super().__init__(network, nn.CrossEntropyLoss(), seed=seed, hyper=hyper, **options)
        self.bank = bank
        if hyper.frozen_backbone:
            network.requires_grad_(False)
            layers = [network.layer] if isinstance(network, WithFeatureLayer) else []
            for part in (*trained, *layers, head):
                part.requires_grad_(True)

    @property
    def head(self) -> MetaEmbedding:
        """The network's classifier."""
        return cast(MetaEmbedding, head_of(self.network))

    def begin_training(self, updates: int) -> None:
        """Set the centroids to the class means; a resumed run then loads its own."""
        super().begin_training(updates)
        bank = require_bank(self, self.bank, "oltr")
        with torch.no_grad():
            means = class_means(self, bank, self.features, len(self.head.centroids))
            self.head.centroids.copy_(means)

    def parameter_groups(self, optim: OptimConfig) -> list[dict[str, Any]]:
        """Groups of features, head, centroids and BatchFormer, each with its own rate."""
        groups = self.slow_backbone_groups(optim, self.head)
        centroids = self.head.centroids
        for group in groups:
            group["params"] = [p for p in group["params"] if p is not centroids]
        rate = optim.lr * self.hyper.centroid_lr_factor
        return [*groups, {"params": [centroids], "lr": rate, "name": "centroids"}]

    def step(self, batch: Batch) -> dict[str, Tensor]:
        features = self.features(batch["x"])
        loss = self.loss(self.classify(self.streams(features)), batch["y"])
        weight, centroids = self.hyper.centroid_weight, self.head.centroids
        apart = centroid_loss(features, batch["y"], centroids, weight)
        return {"loss": loss + apart, "centroid_loss": apart}


def insert_attention(network: nn.Module, hyper: MethodConfig) -> SpatialAttention:
    """Put attention behind the part that ``hyper.attention_after`` names; pooling comes next."""
    body = network.body if isinstance(network, WithFeatureLayer) else network
    parts = dict(body.named_children())
    name = hyper.attention_after
    if name not in parts:
        raise ValueError(
            f"oltr puts attention behind {name!r}, and {type(body).__name__} has no part of that "
            f"name; set --hyper.attention-after to its last stage, one of {', '.join(parts)}, or "
            "leave it empty for none"
        )
    attention = SpatialAttention(feature_width(body), hyper.attention_side)
    setattr(body, name, nn.Sequential(parts[name], attention))
    return attention
