"""MDD: adaptation to a target domain by an adversary that disagrees with the classifier."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from batchformer.lab.config.methods import MethodConfig
from batchformer.lab.config.training import OptimConfig
from batchformer.lab.engine.optimizer_step import Batch
from batchformer.lab.losses.domains import mdd
from batchformer.lab.methods.classifier import Classifier, replace_classifier
from batchformer.lab.models.domains import reverse_gradient
from batchformer.nn.randomness import drawing

#: Standard deviation of the initial weights of the bottleneck and of the classifiers.
BOTTLENECK_DEVIATION, HEAD_DEVIATION = 0.005, 0.01
#: Initial bias of the bottleneck.
BOTTLENECK_BIAS = 0.1
DROPOUT = 0.5


class Mdd(Classifier):
    """A bottleneck with a classifier and an adversary, in place of the network's own classifier.

    Batches hold ``x`` and ``y`` of the source, and ``x_target`` (M, ...): images of the target
    domain without labels. Both domains go through the network, BatchFormer and the bottleneck
    together, so they attend to one another and are normalised together. With two streams the
    classifier and the discrepancy get both streams of each domain.

    Args:
        network: gives pooled features; its classifier is replaced by the identity.
        class_counts: (K,) training images of each class; only their number is used.
    """

    updates: Tensor

    def __init__(
        self,
        network: nn.Module,
        class_counts: Tensor,
        seed: int,
        hyper: MethodConfig | None = None,
        **options: Any,
    ) -> None:
        super().__init__(network, nn.CrossEntropyLoss(), seed=seed, hyper=hyper, **options)
        replace_classifier(network, nn.Identity())
        width, classes = self.hyper.bottleneck, len(class_counts)
        with drawing(seed, "weights", 1):
            self.bottleneck = bottleneck(int(network.num_features), width)  # type: ignore[arg-type]
            self.head, self.adversary = head(width, classes), head(width, classes)
        self.register_buffer("updates", torch.zeros((), dtype=torch.int64))

    def classify(self, features: Tensor) -> Tensor:
        """Logits ``(rows, K)`` of features ``(rows, C)``."""
        logits: Tensor = self.head(self.bottleneck(features))
        return logits

    def reversal(self) -> Tensor:
        """The factor of the reversed gradient, which rises from 0; a tensor on the device."""
        highest, time = self.hyper.reversal, self.updates / self.hyper.reversal_updates
        return 2 * highest / (1 + torch.exp(-time)) - highest

    def step(self, batch: Batch) -> dict[str, Tensor]:
        if "x_target" not in batch:
            raise ValueError(
                "mdd needs images of the target domain, x_target, in every batch; this one has "
                f"{', '.join(batch)}. Set data.adapt, and name data.target."
            )
        images = torch.cat((batch["x"], batch["x_target"]))
        narrow = self.bottleneck(self.streams(self.features(images)))
        adversary = self.adversary(reverse_gradient(narrow, self.reversal()))
        sizes = len(batch["x"]), len(batch["x_target"])
        source, target = split_domains(self.head(narrow), *sizes)
        source_adversary, target_adversary = split_domains(adversary, *sizes)
        ce = self.loss(source, batch["y"])
        gamma = self.hyper.mdd_gamma
        # The adversary minimises this, which maximises the discrepancy; the reversed gradient
        # makes the features minimise the discrepancy.
        penalty = -mdd(source, source_adversary, target, target_adversary, gamma)
        return {"loss": ce + self.hyper.penalty * penalty, "ce": ce, "penalty": penalty}

    def deployed(self) -> nn.Module:
        """The network with bottleneck and head as its classifier, one `nn.Sequential`.

        The adversary is dropped.
        """
        network = copy.deepcopy(self.network)
        replace_classifier(network, nn.Sequential(*self.bottleneck, *self.head))
        return network

    def after_update(self) -> None:
        self.updates.add_(1)

    def parameter_groups(self, optim: OptimConfig) -> list[dict[str, Any]]:
        """The backbone at its own rate, BatchFormer at the classifiers' times its factor."""
        return self.slow_backbone_groups(optim, self.bottleneck, self.head, self.adversary)


def split_domains(rows: Tensor, source: int, target: int) -> tuple[Tensor, Tensor]:
    """The rows of the source and those of the target, each plain and then mixed.

    Args:
        rows: ``[s, t]`` or, with two streams, ``[s, t, s', t']``.
        source: N, samples of the source.
        target: M, samples of the target.

    >>> split_domains(torch.tensor([1, 2, 9, -1, -2, -9]), 2, 1)
    (tensor([ 1,  2, -1, -2]), tensor([ 9, -9]))
    """
    streams = rows.reshape(-1, source + target, *rows.shape[1:])
    return streams[:, :source].flatten(0, 1), streams[:, source:].flatten(0, 1)


def bottleneck(features: int, width: int) -> nn.Sequential:
    """Features (rows, C) to (rows, B), normalised, rectified and dropped out."""
    linear = nn.Linear(features, width)
    nn.init.normal_(linear.weight, std=BOTTLENECK_DEVIATION)
    nn.init.constant_(linear.bias, BOTTLENECK_BIAS)
    return nn.Sequential(linear, nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(DROPOUT))


def head(width: int, classes: int) -> nn.Sequential:
    """(rows, B) to logits (rows, K), with one hidden layer."""
    first, last = nn.Linear(width, width), nn.Linear(width, classes)
    for linear in (first, last):
        nn.init.normal_(linear.weight, std=HEAD_DEVIATION)
        nn.init.zeros_(linear.bias)
    return nn.Sequential(first, nn.ReLU(), nn.Dropout(DROPOUT), last)
