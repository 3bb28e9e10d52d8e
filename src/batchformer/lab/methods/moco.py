"""What MoCo-v2 and MoCo-v3 have in common: two encoders, one BatchFormer, two views."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from batchformer.lab.config.methods import MethodConfig, ModuleConfig
from batchformer.lab.engine.method import Method
from batchformer.lab.losses.contrast import PairList, pair_divisor
from batchformer.lab.methods.encoder import make_encoder
from batchformer.lab.methods.momentum import follow, follower
from batchformer.nn.exchange import ranks
from batchformer.nn.module import two_streams


class Moco(Method):
    """Queries of one encoder, keys of another that follows it slowly.

    Batches need ``x`` and ``view2``, two views of the same images; labels are not used. One
    BatchFormer stands after the pooling of both encoders, before their heads: it is trained by the
    queries, and acts on the keys with the same weights, its dropout included.

    Args:
        network: encodes the queries, with timm's contract; the keys' encoder begins as its copy.
            Its classifier stays as it is, so that its state is that of any network of its kind.
        head: makes queries of features; its copy makes keys.
        module: BatchFormer's settings.
        seed: of the run.
        hyper: temperature, momentum, and which streams are contrasted.
    """

    updates: Tensor

    def __init__(
        self,
        network: nn.Module,
        head: nn.Module,
        module: ModuleConfig,
        seed: int,
        hyper: MethodConfig,
    ) -> None:
        super().__init__()
        contract: Any = network
        contract.get_classifier().requires_grad_(False)
        self.network, self.head = network, head
        self.key_network, self.key_head = follower(network), follower(head)
        self.config, self.hyper, self.seed = module, hyper, seed
        self.module_lr_factor = module.lr_factor
        self.encoder = make_encoder(int(contract.num_features), module, seed)
        # A tensor, so that a recorded update counts on when it is replayed.
        self.register_buffer("updates", torch.zeros((), dtype=torch.int64))
        self.updates_in_all = 0

    def features(self, x: Tensor) -> Tensor:
        """Pooled features ``(N, C)`` of images ``(N, channels, H, W)``."""
        return pooled(self.network, x)

    def streams(self, features: Tensor) -> Tensor:
        """What heads are given: ``(2N, C)`` of features ``(N, C)`` with shared streams."""
        if self.encoder is None:
            return features
        if self.config.streams == "mixed_only":
            mixed: Tensor = self.encoder(features)
            return mixed
        return two_streams(features, self.encoder)

    def queries(self, x: Tensor) -> Tensor:
        """Queries ``(2N, D)`` of images, plain then mixed; ``(N, D)`` of one stream."""
        made: Tensor = self.head(self.streams(self.features(x)))
        return made

    @torch.no_grad()
    def keys(self, x: Tensor) -> Tensor:
        """Keys ``(2N, D)`` of images by the slower encoder; ``(N, D)`` of one stream.

        To be called after the queries: autocast keeps the first cast of BatchFormer's weights, and
        a cast made without gradients would cut them off.
        """
        made: Tensor = self.key_head(self.streams(pooled(self.key_network, x)))
        return made

    def forward(self, x: Tensor) -> Tensor:
        """Queries, as they are trained."""
        return self.queries(x)

    def pair_list(self, queries: dict[str, Tensor]) -> PairList:
        """The name of the list of contrasted pairs; of one stream there is one pair."""
        return self.hyper.contrast_pairs if len(queries) == 2 else "plain"

    def divisor(self, kind: PairList) -> int:
        """What the terms of a view are divided by."""
        return pair_divisor(kind, "sum" if self.config.loss_scale == "sum" else "mean")

    def predict(self, x: Tensor) -> Tensor:
        """Features ``(N, C)`` of the plain network: what is learnt here has no classes."""
        return self.features(x)

    def begin_training(self, updates: int) -> None:
        self.updates_in_all = updates

    def momentum(self) -> float | Tensor:
        """The share of its weights that the keys' encoder keeps, after the updates so far.

        Its cosine counts the updates done, as MoCo-v3, which moves the keys' encoder at the
        beginning of the next step.
        """
        least = self.hyper.momentum
        if self.hyper.momentum_schedule == "constant":
            return least
        if not self.updates_in_all:
            raise RuntimeError(
                "The momentum rises over the whole training, whose length is not known: call "
                "begin_training(updates) before the first update."
            )
        done = (self.updates / self.updates_in_all).clamp(max=1)
        return 1 - (1 - least) * (torch.cos(math.pi * done) + 1) / 2

    def after_update(self) -> None:
        self.updates.add_(1)
        momentum = self.momentum()
        follow(self.key_network, self.network, momentum)
        follow(self.key_head, self.head, momentum)

    def why_eager(self) -> str | None:
        if ranks() > 1:
            return "keys are exchanged between ranks, which first tell how many they have"
        return None


def pooled(network: Any, x: Tensor) -> Tensor:
    """Pooled features ``(N, C)`` of a network with timm's contract."""
    features: Tensor = network.forward_head(network.forward_features(x), pre_logits=True)
    return features


def directions(rows: Tensor) -> Tensor:
    """Rows ``(N, D)`` of length one, in float32 or wider."""
    return F.normalize(rows.to(torch.promote_types(rows.dtype, torch.float32)), dim=1)


def by_stream(rows: Tensor, n: int) -> dict[str, Tensor]:
    """The streams ``(N, D)`` that rows consist of: both, or the only one as ``plain``.

    >>> {name: len(part) for name, part in by_stream(torch.zeros(6, 2), 3).items()}
    {'plain': 3, 'mixed': 3}
    """
    names = ("plain", "mixed") if len(rows) == 2 * n else ("plain",)
    return dict(zip(names, rows.chunk(len(names)), strict=True))


@torch.no_grad()
def watched(query: Tensor, key: Tensor) -> dict[str, Tensor]:
    """What tells learning from collapse, of directions ``(N, D)`` of the same samples.

    Returns:
        ``positive``, the mean cosine of the pairs; ``spread``, the mean over channels of the
        standard deviation of queries, ``1 / sqrt(D)`` at best, 0 if all queries are alike.
    """
    return {
        "positive": (query * key).sum(1).mean(),
        "spread": query.std(0, correction=0).mean(),
    }
