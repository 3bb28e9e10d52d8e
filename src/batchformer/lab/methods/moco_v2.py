"""MoCo-v2 (Chen et al., 2020): queries against their keys and a queue of earlier ones."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from batchformer.lab.config.methods import MethodConfig, ModuleConfig, require_contrast_sense
from batchformer.lab.engine.optimizer_step import Batch
from batchformer.lab.losses.contrast import queue_contrast, stream_pairs
from batchformer.lab.methods.moco import Moco, by_stream, directions, watched
from batchformer.lab.methods.queue import KeyQueue
from batchformer.lab.methods.shuffled_norm import (
    draw_order,
    encode_shuffled,
    in_parts,
    parts_of_rank,
)
from batchformer.lab.models.heads import projector
from batchformer.lab.models.norms import normalise_in_parts
from batchformer.nn.exchange import gather
from batchformer.nn.randomness import drawing


class MocoV2(Moco):
    """Each query tells its own key from those of earlier batches.

    With two streams every stream of the queries meets every stream of the keys, 4N rows, and both
    streams of the keys enter the queue, which begins empty, unless ``hyper.enqueued`` says
    otherwise. The release takes the mean of all rows, ``module.loss_scale`` "mean". Between ranks,
    images are shuffled for the keys' encoder, and the keys of all ranks enter the queue.

    With ``hyper.norm_parts`` each part of a batch is normalised by itself, and images of the keys
    are assigned to parts at random in every update, which is what that many ranks compute
    (:mod:`~batchformer.lab.methods.shuffled_norm`). BatchFormer attends to the whole batch all the
    same. On several ranks each has its share of the parts.

    Args:
        network: encodes the queries, with timm's contract.
        module: BatchFormer's settings.
        seed: of the initial weights of encoder and head.
        hyper: temperature, queue, dim, momentum, projection_layers, _hidden and _front,
            contrast_pairs, norm_parts, enqueued.
        class_counts: not used; images have no labels here.
    """

    def __init__(
        self,
        network: nn.Module,
        module: ModuleConfig,
        seed: int,
        hyper: MethodConfig | None = None,
        class_counts: Tensor | None = None,
    ) -> None:
        hyper = hyper or MethodConfig()
        require_contrast_sense("moco_v2", module, hyper)
        with drawing(seed, "weights", 1):
            head = projector(
                int(network.num_features),  # type: ignore[arg-type]
                hyper.dim,
                hyper.projection_layers,
                hyper.projection_hidden,
                hyper.projection_front,
            )
        self.parts = parts_of_rank(hyper.norm_parts)
        normalise_in_parts(network, self.parts)
        if hyper.projection_front:
            normalise_in_parts(head, self.parts)
        super().__init__(network, head, module, seed, hyper)
        self.queue = KeyQueue(hyper.queue, hyper.dim)

    def features(self, x: Tensor) -> Tensor:
        """Pooled features ``(N, C)`` of images; in training each part is normalised by itself."""
        return in_parts(super().features, x, self.parts if self.training else 1)

    def queries(self, x: Tensor) -> Tensor:
        """As ever; a normalised front of the head has the parts that the network had."""
        if not (self.training and self.hyper.projection_front):
            return super().queries(x)
        both = self.streams(self.features(x))
        return in_parts(self.head, both, self.parts, streams=len(both) // len(x))

    def step(self, batch: Batch) -> dict[str, Tensor]:
        # Drawn before dropout is, so that arms with and without BatchFormer have the same.
        order = draw_order(batch["view2"], self.parts)
        queries = by_stream(directions(self.queries(batch["x"])), len(batch["x"]))
        keys = self.key_streams(batch["view2"], order)
        kind = self.pair_list(queries)
        pairs = stream_pairs(kind, 1)
        loss = queue_contrast(
            torch.cat([queries[pair.query] for pair in pairs]),
            torch.cat([keys[pair.key] for pair in pairs]),
            self.queue.keys.clone(),  # gradients need it as it was before new keys enter
            self.hyper.temperature,
            self.queue.valid,
        )
        self.enqueue(keys)
        terms = len(pairs) / self.divisor(kind)
        return {"loss": terms * loss, **watched(queries["plain"], keys["plain"])}

    @torch.no_grad()
    def key_streams(self, x: Tensor, order: Tensor | None = None) -> dict[str, Tensor]:
        """Directions (N, D) of each stream of images, which are shuffled for the encoder.

        Args:
            x: images (N, channels, H, W).
            order: (N,) on one rank, the order that assigns rows to parts.
        """
        rows = encode_shuffled(
            lambda images: directions(self.keys(images)), x, order, self.seed, self.updates
        )
        return by_stream(rows, len(x))

    @torch.no_grad()
    def enqueue(self, keys: dict[str, Tensor]) -> None:
        """Let keys of all ranks take the place of the oldest, one stream after the other."""
        both = self.hyper.enqueued == "both" or len(keys) == 1
        chosen = list(keys.values()) if both else [keys[self.hyper.enqueued]]
        new = torch.cat([gather(rows) for rows in chosen])
        self.queue.push(new, torch.zeros(len(new), dtype=torch.int64, device=new.device))
