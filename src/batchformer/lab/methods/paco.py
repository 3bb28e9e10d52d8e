"""PaCo: queries against keys of a momentum encoder, a queue of keys, and learned class centres."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from batchformer.lab.config.methods import MethodConfig, ModuleConfig
from batchformer.lab.engine.optimizer_step import Batch
from batchformer.lab.losses.paco import CentreLoss, paco
from batchformer.lab.methods.classifier import (
    JOINT_SCALES,
    Classifier,
    pooled_features,
)
from batchformer.lab.methods.momentum import (
    KeyQueue,
    draw_order,
    encode_in_parts,
    encode_shuffled,
    frozen_copy,
    parts_of_rank,
    update_average_,
)
from batchformer.lab.models.heads import Projection, feature_width
from batchformer.lab.models.norms import normalise_in_parts
from batchformer.nn.exchange import gather
from batchformer.nn.randomness import drawing
from batchformer.nn.streams import match


class PaCoMethod(Classifier):
    """The network's classifier holds the class centres, so predictions are the plain network's.

    Batches need ``view2``, a second view of the same images, for the keys. One BatchFormer acts
    before both projections and the centres. With shared streams, queries, keys and centre logits
    have 2N rows, and the queue takes both halves of the keys.

    As in PaCo's code, several ranks shuffle the keys' images between them, and the keys of all
    ranks enter the queue. With ``hyper.norm_parts`` one device normalises a batch as that many
    ranks would (:mod:`~batchformer.lab.methods.momentum`); the projection normalises both streams
    of a part together. Every query is still contrasted with the keys of the whole batch, where a
    rank would have only its own, and BatchFormer attends to the whole batch.

    Args:
        network: encodes the queries; the keys' encoder starts as its copy.
    """

    criterion: CentreLoss
    updates: Tensor

    def __init__(
        self,
        network: nn.Module,
        class_counts: Tensor,
        module: ModuleConfig,
        seed: int,
        hyper: MethodConfig,
        **options: Any,
    ) -> None:
        # Figures use the loss of the centres: the contrast would relate samples too.
        super().__init__(network, CentreLoss(class_counts), module, seed, hyper, **options)
        with drawing(seed, "weights", 1):
            self.projection = Projection(feature_width(network), hyper.dim)
        self.seed, self.parts = seed, parts_of_rank(hyper.norm_parts)
        normalise_in_parts(network, self.parts)
        normalise_in_parts(self.projection, self.parts)
        self.key_network, self.key_projection = frozen_copy(network), frozen_copy(self.projection)
        self.queue = KeyQueue(hyper.queue, hyper.dim)
        # A tensor, so that a captured update goes on counting when it is replayed.
        self.register_buffer("updates", torch.zeros((), dtype=torch.int64))

    def features(self, x: Tensor) -> Tensor:
        """Pooled features ``(N, C)`` of images; in training each part is normalised by itself."""
        return encode_in_parts(super().features, x, self.parts if self.training else 1)

    def step(self, batch: Batch) -> dict[str, Tensor]:
        # Drawn before any dropout, so that arms with and without BatchFormer shuffle alike.
        order = draw_order(batch["view2"], self.parts)
        rows = self.streams(self.features(batch["x"]))
        streams = len(rows) // len(batch["y"])
        centre_logits = self.classify(rows)
        # After the queries: autocast caches the first cast of the encoder's weights, and a cast
        # made without gradients would cut off theirs.
        keys = encode_shuffled(self.keys, batch["view2"], order, self.seed, self.updates)
        labels = match(rows, batch["y"])
        queue = self.queue
        loss = paco(
            encode_in_parts(self.projection, rows, self.parts, streams),
            keys,
            queue.keys,
            centre_logits,
            labels,
            queue.labels,
            self.criterion.class_counts,
            alpha=self.hyper.alpha,
            temperature=self.hyper.temperature,
            queue_valid=queue.valid,
        )
        # Every rank queues the keys of all ranks, in the order that one process would have.
        new = torch.cat([gather(stream) for stream in keys.chunk(streams)])
        queue.push(new, gather(batch["y"]).repeat(streams))
        return {"loss": loss * JOINT_SCALES[self.config.loss_scale] if streams == 2 else loss}

    @torch.no_grad()
    def keys(self, x: Tensor) -> Tensor:
        """Keys (2N, D) of images (N, channels, H, W) by the momentum encoder."""
        keys: Tensor = self.key_projection(self.streams(pooled_features(self.key_network, x)))
        return keys

    def after_update(self) -> None:
        self.updates.add_(1)
        update_average_(self.key_network, self.network, self.hyper.momentum)
        update_average_(self.key_projection, self.projection, self.hyper.momentum)
