"""MoCo-v2 (Chen et al., 2020): queries against their keys and a queue of earlier ones."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from batchformer.engine.config import require
from batchformer.engine.mechanics import Batch
from batchformer.exchange import gather
from batchformer.losses.info_nce import queue_contrast, stream_pairs
from batchformer.methods.config import MethodConfig, ModuleConfig
from batchformer.methods.contrast_sense import require_contrast_sense
from batchformer.methods.moco import Moco, by_stream, directions, watched
from batchformer.methods.queue import KeyQueue
from batchformer.models.contrast_heads import projector
from batchformer.models.norm_in_parts import collect, deal, normalise_in_parts
from batchformer.randomness import drawing, seed_for
from batchformer.ranks import ranks
from batchformer.shuffle import shuffle, unshuffle

#: Beside the updates done, so that the shuffle of keys is no other order of the same seed.
SHUFFLE = 2


class MocoV2(Moco):
    """Each query tells its own key from those of earlier batches.

    With two streams every stream of the queries meets every stream of the keys, 4N rows, and both
    streams of the keys enter the queue, which begins empty, unless ``hyper.enqueued`` says
    otherwise. The release takes the mean of all rows, ``module.loss_scale`` "mean". Between ranks,
    images are shuffled for the keys' encoder, and the keys of all ranks enter the queue.

    On one device nothing is shuffled, and statistics that a batch of queries shares with its keys,
    and not with the queue, could give keys away. With ``hyper.norm_parts`` each part of a batch is
    normalised by itself, and those of the keys are dealt anew at every update, which is what that
    many ranks compute. BatchFormer attends to the whole batch all the same. On several ranks each
    has its share of the parts.

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
        """Pooled features ``(N, C)`` of images; in training, parts follow one another in them."""
        if not self.training or self.parts == 1:
            return super().features(x)
        _require_rows(len(x), self.parts)
        return collect(super().features(deal(x, self.parts)), self.parts)

    def queries(self, x: Tensor) -> Tensor:
        """As ever; a normalised front of the head has the parts that the network had."""
        if not (self.training and self.parts > 1 and self.hyper.projection_front):
            return super().queries(x)
        both = self.streams(self.features(x))
        streams = both.chunk(len(both) // len(x))
        made: Tensor = self.head(torch.cat([deal(rows, self.parts) for rows in streams]))
        return torch.cat([collect(rows, self.parts) for rows in made.chunk(len(streams))])

    def step(self, batch: Batch) -> dict[str, Tensor]:
        # Drawn before dropout is, so that arms with and without BatchFormer have the same.
        order = self._order(batch["view2"])
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
        """Directions (N, D) of each stream of images, which ranks shuffle for the encoder.

        Args:
            x: images (N, channels, H, W).
            order: (N,) on one rank, the rows in the order in which they are dealt to parts.
        """
        images, shuffled = shuffle(x, self._shuffle_seed())
        images = images if order is None else images[order]
        streams = by_stream(directions(self.keys(images)), len(x))
        if order is not None:
            back = order.argsort()
            return {name: rows[back] for name, rows in streams.items()}
        return {name: unshuffle(rows, shuffled) for name, rows in streams.items()}

    def _order(self, x: Tensor) -> Tensor | None:
        """Which rows of keys meet in a part; None where ranks shuffle, or there is one part.

        Drawn on the device and without reading from it, so that an update can be recorded.
        """
        if self.parts == 1 or ranks() > 1:
            return None
        _require_rows(len(x), self.parts)
        return torch.rand(len(x), device=x.device).argsort()

    @torch.no_grad()
    def enqueue(self, keys: dict[str, Tensor]) -> None:
        """Let keys of all ranks take the place of the oldest, one stream after the other."""
        both = self.hyper.enqueued == "both" or len(keys) == 1
        chosen = list(keys.values()) if both else [keys[self.hyper.enqueued]]
        new = torch.cat([gather(rows) for rows in chosen])
        self.queue.push(new, torch.zeros(len(new), dtype=torch.int64, device=new.device))

    def _shuffle_seed(self) -> int:
        if ranks() == 1:  # it does not shuffle, and must not read from the device
            return 0
        return seed_for(self.seed, "order", int(self.updates), SHUFFLE)


def parts_of_rank(parts: int) -> int:
    """The parts of a batch that one rank has.

    >>> parts_of_rank(8)
    8
    """
    require(
        parts == 1 or parts % ranks() == 0,
        f"hyper.norm-parts {parts} does not go round {ranks()} ranks: set a multiple of "
        f"{ranks()}, or 1 for as many parts as ranks",
    )
    return max(1, parts // ranks())


def _require_rows(rows: int, parts: int) -> None:
    require(
        rows % parts == 0,
        f"a batch of {rows} rows has no {parts} parts of one size (hyper.norm-parts)",
    )
