"""PaCo: queries against keys of a slower encoder, a queue of them, and learned class centres."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from batchformer.insight.relations import Relations
from batchformer.lab.config.methods import MethodConfig, ModuleConfig
from batchformer.lab.engine.optimizer_step import Batch
from batchformer.lab.losses.paco import PaCo, log_prior
from batchformer.lab.methods.classifier import Classifier
from batchformer.lab.methods.momentum import (
    KeyQueue,
    draw_order,
    encode_shuffled,
    follow,
    follower,
    in_parts,
    parts_of_rank,
)
from batchformer.lab.models.heads import Projection
from batchformer.lab.models.norms import normalise_in_parts
from batchformer.nn.exchange import gather
from batchformer.nn.randomness import drawing
from batchformer.nn.streams import match

#: By how much the mean over all 2N anchors is multiplied.
SCALES = {"mean": 1.0, "sum": 2.0}


class PaCoMethod(Classifier):
    """The network's classifier holds the class centres, so that its prediction is the network's.

    Batches need ``view2``, a second view of the same images, for the keys. One BatchFormer stands
    before both projections and the centres: with shared streams queries, keys and centre logits
    have 2N rows, and the queue takes both halves of the keys.

    As in PaCo's code, several ranks shuffle the keys' images between them, and the keys of all
    ranks enter the queue. With ``hyper.norm_parts`` one device normalises a batch as that many
    ranks would (:mod:`~batchformer.lab.methods.momentum`), in the projection both streams of a
    part together. It still contrasts every query with the keys of the whole batch, where a rank has
    those of its own rows, and BatchFormer attends to the whole batch.

    Args:
        network: encodes the queries; the keys' encoder begins as its copy.
        class_counts: (K,) training images of each class.
        module: BatchFormer's settings.
        seed: of the initial weights of encoder and projection.
        hyper: alpha, temperature, queue, dim, momentum and norm_parts.
    """

    criterion: PaCo
    updates: Tensor

    def __init__(
        self,
        network: nn.Module,
        class_counts: Tensor,
        module: ModuleConfig,
        seed: int,
        hyper: MethodConfig | None = None,
        **options: Any,
    ) -> None:
        hyper = hyper or MethodConfig()
        criterion = PaCo(class_counts, alpha=hyper.alpha, temperature=hyper.temperature)
        super().__init__(network, criterion, module, seed, hyper, **options)
        with drawing(seed, "weights", 1):
            self.projection = Projection(int(network.num_features), hyper.dim)  # type: ignore[arg-type]
        self.seed, self.parts = seed, parts_of_rank(hyper.norm_parts)
        normalise_in_parts(network, self.parts)
        normalise_in_parts(self.projection, self.parts)
        self.key_network, self.key_projection = follower(network), follower(self.projection)
        self.queue = KeyQueue(hyper.queue, hyper.dim)
        # A tensor, so that a captured update goes on counting when it is replayed.
        self.register_buffer("updates", torch.zeros((), dtype=torch.int64))

    def features(self, x: Tensor) -> Tensor:
        """Pooled features ``(N, C)`` of images; in training each part is normalised by itself."""
        return in_parts(super().features, x, self.parts if self.training else 1)

    def step(self, batch: Batch) -> dict[str, Tensor]:
        # Drawn before dropout is, so that arms with and without BatchFormer shuffle alike.
        order = draw_order(batch["view2"], self.parts)
        rows = self.streams(self.features(batch["x"]))
        streams = len(rows) // len(batch["y"])
        centre_logits = self.classify(rows)
        # After the queries: autocast keeps the first cast of the encoder's weights, and a cast made
        # without gradients would cut them off.
        keys = encode_shuffled(self.keys, batch["view2"], order, self.seed, self.updates)
        labels = match(rows, batch["y"])
        queue = self.queue
        loss = self.criterion(
            in_parts(self.projection, rows, self.parts, streams),
            keys,
            queue.keys,
            centre_logits,
            labels,
            queue.labels,
            queue.valid,
        )
        # Every rank keeps the keys of all, in the order that one process would have.
        new = torch.cat([gather(stream) for stream in keys.chunk(streams)])
        queue.push(new, gather(batch["y"]).repeat(streams))
        return {"loss": loss * SCALES[self.config.loss_scale] if streams == 2 else loss}

    def centre_loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The loss of centre logits (N, K) alone, as if there were no other sample; a scalar."""
        criterion = self.criterion
        centres = logits + log_prior(criterion.class_counts, logits.dtype)
        return F.cross_entropy(centres / criterion.supt, targets)

    def relations(self) -> Relations | None:
        """By the loss of the centres: that of keys would meet samples besides BatchFormer."""
        found = super().relations()
        return None if found is None else dataclasses.replace(found, loss=self.centre_loss)

    @torch.no_grad()
    def keys(self, x: Tensor) -> Tensor:
        """Directions (2N, D) of images (N, channels, H, W) by the slower encoder."""
        network: Any = self.key_network
        pooled: Tensor = network.forward_head(network.forward_features(x), pre_logits=True)
        directions: Tensor = self.key_projection(self.streams(pooled))
        return directions

    def after_update(self) -> None:
        self.updates.add_(1)
        follow(self.key_network, self.network, self.hyper.momentum)
        follow(self.key_projection, self.projection, self.hyper.momentum)
