"""BBN (Zhou et al., 2020): two branches, one of them for rare classes, and cumulative learning.

This follows the released code. The place of BatchFormer is our choice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from batchformer.insight.relations import Relations
from batchformer.lab.config.methods import MethodConfig, ModuleConfig
from batchformer.lab.engine.method import Method
from batchformer.lab.engine.optimizer_step import Batch
from batchformer.lab.losses.bbn import bilateral_loss, cumulative_alpha, mixed_branches
from batchformer.lab.methods.classifier import (
    apply_encoder,
    head_of,
    loss_of_streams,
    make_encoder,
    pooled_features,
)
from batchformer.lab.models.bbn import Branch, split_last_block
from batchformer.lab.models.heads import feature_width
from batchformer.nn.module import BatchFormer
from batchformer.nn.randomness import drawing, seed_for


class Bbn(Method):
    """A network with two copies of its last block, trained on pairs of images.

    The conventional branch sees the images of a batch, the rebalancing branch those that are paired
    with them (``paired_x``, ``paired_y``), most of them of rare classes. Both go through the shared
    layers one after the other, so that each is normalised by its own statistics. One classifier
    sees both features, weighted by alpha and 1 - alpha, and alpha falls from 1 over the training.
    At test an image goes through both branches, which count equally.

    Each branch has a BatchFormer of its own. Plain features are paired with plain ones, and mixed
    features with mixed ones.

    Args:
        network: with timm's contract and a stage of blocks before its classifier; it is given its
            second branch here.
        class_counts: (K,) training images of each class; only their number is used.
    """

    alpha: Tensor

    def __init__(
        self,
        network: nn.Module,
        class_counts: Tensor,
        module: ModuleConfig,
        seed: int,
        hyper: MethodConfig,
    ) -> None:
        super().__init__()
        self.network, self.config = network, module
        self.hyper = hyper
        self.module_lr_factor = module.lr_factor
        with drawing(seed, "weights", 1):
            # In a tuple: it is a part of the network already, and is not registered twice.
            self.branches = (split_last_block(network, len(class_counts)),)
        width = feature_width(network) // 2
        seeds = (seed, seed_for(seed, "module weights", 1))
        encoders = [made for each in seeds if (made := make_encoder(width, module, each))]
        self.encoder = nn.ModuleList(encoders) if encoders else None
        self.dropout = nn.Dropout(self.hyper.feature_dropout)
        # A tensor: a captured update reads its value each time.
        self.register_buffer("alpha", torch.ones(()), persistent=False)

    def branch_features(self, x: Tensor, branch: Branch) -> Tensor:
        """Images (N, channels, H, W) to pooled features, (N, C) of one branch or (N, 2C)."""
        (branches,) = self.branches
        branches.branch = branch
        try:
            return pooled_features(self.network, x)
        finally:
            branches.branch = "both"

    def classify(self, features: Tensor) -> Tensor:
        """Features (rows, 2C) of both branches to logits (rows, K)."""
        logits: Tensor = head_of(self.network)(features)
        return logits

    def streams(self, *features: Tensor) -> list[Tensor]:
        """Features (N, C) of each branch to its training rows, (2N, C) with shared streams."""
        encoders: Any = self.encoder or (None, None)
        pairs = zip(encoders, features, strict=True)
        return [apply_encoder(encoder, rows, self.config) for encoder, rows in pairs]

    def forward(self, x: Tensor) -> Tensor:
        """Logits of images in both branches: ``(2N, K)`` in training with shared streams."""
        rows = torch.cat(self.streams(*self.branch_features(x, "both").chunk(2, dim=1)), dim=1)
        return self.classify(self.dropout(rows))

    def step(self, batch: Batch) -> dict[str, Tensor]:
        conventional = self.branch_features(batch["x"], "conventional")
        rebalancing = self.branch_features(batch["paired_x"], "rebalancing")
        first, second = self.streams(conventional, rebalancing)
        rows = self.dropout(mixed_branches(first, second, self.alpha))
        criterion = partial(bilateral_loss, alpha=self.alpha)
        targets = batch["y"], batch["paired_y"]
        return {"loss": loss_of_streams(criterion, self.classify(rows), targets, self.config)}

    def predict(self, x: Tensor) -> Tensor:
        return self.classify(self.branch_features(x, "both"))

    def begin_epoch(self, epoch: int) -> None:
        length = self.hyper.cumulative_epochs or self.epochs
        self.alpha.fill_(cumulative_alpha(epoch, length) if length else 1.0)

    def relations(self) -> Relations | None:
        """Relations of images that go through both branches, as at test."""
        features = partial(self.branch_features, branch="both")
        encoders: Any = tuple(self.encoder or ())
        return BranchRelations(
            self,
            features,
            self.classify,
            nn.CrossEntropyLoss(),
            encoders[0] if encoders else None,
            self.config.streams == "mixed_only",
            encoders=encoders,
        )


@dataclass(frozen=True, eq=False)
class BranchRelations(Relations):
    """Relations of features (N, 2C), each half of which has an encoder of its own."""

    encoders: tuple[BatchFormer, ...] = ()

    def mix(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Mixed features (N, 2C), and attention weights (H, N, N), the mean over branches."""
        halves = self._halves(features, lambda branch, half: branch.mix(half))
        mixed, weights = zip(*halves, strict=True)
        return torch.cat(mixed, -1), torch.stack(weights).mean(0)

    def mix_rows(self, copies: Tensor, rows: Tensor) -> Tensor:
        """Mixed features (B, 2C) of one sample of each of B batches (B, N, 2C)."""
        return torch.cat(
            self._halves(copies, lambda branch, half: branch.mix_rows(half, rows)), dim=-1
        )

    def _halves(self, features: Tensor, work: Callable[[Relations, Tensor], Any]) -> list[Any]:
        parts = features.chunk(2, dim=-1)
        given = (self.module, self.features, self.classify, self.loss)
        branches = [Relations(*given, encoder, self.mixed_only) for encoder in self.encoders]
        return [work(branch, half) for branch, half in zip(branches, parts, strict=True)]
