"""MoCo-v2 (Chen et al., 2020) and MoCo-v3 (Chen et al., 2021): two encoders, two views."""

from __future__ import annotations

import math
import sys
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from batchformer.lab.config.methods import MethodConfig, ModuleConfig
from batchformer.lab.engine.method import Method
from batchformer.lab.engine.optimizer_step import Batch
from batchformer.lab.losses import widened
from batchformer.lab.losses.contrast import (
    PairList,
    batch_contrast,
    pair_divisor,
    queue_contrast,
    stream_pairs,
)
from batchformer.lab.methods.classifier import (
    apply_encoder,
    head_of,
    make_encoder,
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
from batchformer.lab.models.heads import feature_width, normalised_projector, projector
from batchformer.lab.models.norms import normalise_in_parts
from batchformer.nn.exchange import gather, row_counts, rows_of_rank
from batchformer.nn.randomness import drawing


class Moco(Method):
    """Contrasts queries of an encoder with keys of its momentum encoder.

    Batches need ``x`` and ``view2``, two views of the same images; labels are not used. One
    BatchFormer acts after the pooling of both encoders, before their heads. The queries train it,
    and it acts on the keys with the same weights, including dropout.

    Args:
        network: encodes the queries, with timm's contract; the keys' encoder starts as its copy.
            Its classifier is not trained, and stays in its state.
        head: makes queries from features; its copy makes keys.
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
        head_of(network).requires_grad_(False)
        self.network, self.head = network, head
        self.key_network, self.key_head = frozen_copy(network), frozen_copy(head)
        self.config, self.hyper, self.seed = module, hyper, seed
        self.module_lr_factor = module.lr_factor
        self.encoder = make_encoder(feature_width(network), module, seed)
        # A tensor, so that a captured update goes on counting when it is replayed.
        self.register_buffer("updates", torch.zeros((), dtype=torch.int64))
        self.total_updates = 0

    def features(self, x: Tensor) -> Tensor:
        """Pooled features ``(N, C)`` of images ``(N, channels, H, W)``."""
        return pooled_features(self.network, x)

    def streams(self, features: Tensor) -> Tensor:
        """What the heads get: ``(2N, C)`` of features ``(N, C)`` with shared streams."""
        return apply_encoder(self.encoder, features, self.config)

    def queries(self, x: Tensor) -> Tensor:
        """Queries ``(2N, D)`` of images, plain then mixed; ``(N, D)`` of one stream."""
        made: Tensor = self.head(self.streams(self.features(x)))
        return made

    @torch.no_grad()
    def keys(self, x: Tensor) -> Tensor:
        """Keys ``(2N, D)`` of images by the momentum encoder; ``(N, D)`` of one stream.

        Call it after the queries: autocast caches the first cast of BatchFormer's weights, and a
        cast made without gradients would cut off theirs.
        """
        made: Tensor = self.key_head(self.streams(pooled_features(self.key_network, x)))
        return made

    def forward(self, x: Tensor) -> Tensor:
        """Queries, as they are trained."""
        return self.queries(x)

    def pair_list(self, queries: dict[str, Tensor]) -> PairList:
        """The name of the list of contrasted pairs; one stream has one pair."""
        return self.hyper.contrast_pairs if len(queries) == 2 else "plain"

    def divisor(self, kind: PairList) -> int:
        """The divisor of a view's terms."""
        return pair_divisor(kind, "sum" if self.config.loss_scale == "sum" else "mean")

    def predict(self, x: Tensor) -> Tensor:
        """Features ``(N, C)`` of the plain network: nothing here has classes."""
        return self.features(x)

    def begin_training(self, updates: int) -> None:
        self.total_updates = updates

    def momentum(self) -> float | Tensor:
        """The share of its weights that the momentum encoder keeps, after the updates so far.

        The cosine counts finished updates, as in MoCo-v3's code, which moves the momentum encoder
        at the beginning of the next step.
        """
        least = self.hyper.momentum
        if self.hyper.momentum_schedule == "constant":
            return least
        if not self.total_updates:
            raise RuntimeError(
                "The momentum rises over the whole training, and its length is unknown: call "
                "begin_training(updates) before the first update."
            )
        done = (self.updates / self.total_updates).clamp(max=1)
        return 1 - (1 - least) * (torch.cos(math.pi * done) + 1) / 2

    def after_update(self) -> None:
        self.updates.add_(1)
        momentum = self.momentum()
        update_average_(self.key_network, self.network, momentum)
        update_average_(self.key_head, self.head, momentum)


def unit_rows(rows: Tensor) -> Tensor:
    """Rows ``(N, D)`` scaled to length 1, in float32 or wider."""
    return F.normalize(widened(rows), dim=1)


def by_stream(rows: Tensor, n: int) -> dict[str, Tensor]:
    """Rows as streams ``(N, D)``: ``plain`` and ``mixed``, or the only one as ``plain``.

    >>> {name: len(part) for name, part in by_stream(torch.zeros(6, 2), 3).items()}
    {'plain': 3, 'mixed': 3}
    """
    names = ("plain", "mixed") if len(rows) == 2 * n else ("plain",)
    return dict(zip(names, rows.chunk(len(names)), strict=True))


@torch.no_grad()
def collapse_metrics(query: Tensor, key: Tensor) -> dict[str, Tensor]:
    """Metrics that distinguish learning from collapse, of unit rows ``(N, D)`` of the same samples.

    ``positive`` is the mean cosine of the pairs; ``spread`` the mean over channels of the standard
    deviation of queries, ``1 / sqrt(D)`` at best, 0 if all queries are equal.
    """
    return {
        "positive": (query * key).sum(1).mean(),
        "spread": query.std(0, correction=0).mean(),
    }


class MocoV2(Moco):
    """Each query must find its own key among the keys of earlier batches, in a queue.

    With two streams every stream of the queries is contrasted with every stream of the keys, 4N
    rows. Both streams of the keys enter the queue, unless ``hyper.enqueued`` says otherwise; it
    starts empty. The released code takes the mean of all rows, ``module.loss_scale`` "mean".
    Several ranks shuffle images between them for the keys' encoder, and the keys of all ranks enter
    the queue.

    With ``hyper.norm_parts`` each part of a batch is normalised by itself, and the keys' images are
    assigned to parts at random in every update, which is what that many ranks compute
    (:mod:`~batchformer.lab.methods.momentum`). BatchFormer still attends to the whole batch. On
    several ranks each has its share of the parts.
    """

    def __init__(
        self,
        network: nn.Module,
        module: ModuleConfig,
        seed: int,
        hyper: MethodConfig,
    ) -> None:
        with drawing(seed, "weights", 1):
            head = projector(
                feature_width(network),
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
        return encode_in_parts(super().features, x, self.parts if self.training else 1)

    def queries(self, x: Tensor) -> Tensor:
        """As in :class:`Moco`; a head with a normalised front uses the network's parts."""
        if not (self.training and self.hyper.projection_front):
            return super().queries(x)
        both = self.streams(self.features(x))
        return encode_in_parts(self.head, both, self.parts, streams=len(both) // len(x))

    def step(self, batch: Batch) -> dict[str, Tensor]:
        # Drawn before any dropout, so that arms with and without BatchFormer get the same order.
        order = draw_order(batch["view2"], self.parts)
        queries = by_stream(unit_rows(self.queries(batch["x"])), len(batch["x"]))
        keys = self.key_streams(batch["view2"], order)
        kind = self.pair_list(queries)
        pairs = stream_pairs(kind, 1)
        loss = queue_contrast(
            torch.cat([queries[pair.query] for pair in pairs]),
            torch.cat([keys[pair.key] for pair in pairs]),
            self.queue.keys.clone(),  # the backward pass needs it without the new keys
            self.hyper.temperature,
            self.queue.valid,
        )
        self.enqueue(keys)
        terms = len(pairs) / self.divisor(kind)
        return {"loss": terms * loss, **collapse_metrics(queries["plain"], keys["plain"])}

    @torch.no_grad()
    def key_streams(self, x: Tensor, order: Tensor | None = None) -> dict[str, Tensor]:
        """Unit keys (N, D) of each stream; images are shuffled for the encoder.

        Args:
            order: (N,) on one rank, the order that assigns rows to parts.
        """
        rows = encode_shuffled(
            lambda images: unit_rows(self.keys(images)), x, order, self.seed, self.updates
        )
        return by_stream(rows, len(x))

    @torch.no_grad()
    def enqueue(self, keys: dict[str, Tensor]) -> None:
        """Replace the oldest keys by those of all ranks, one stream after the other."""
        both = self.hyper.enqueued == "both" or len(keys) == 1
        chosen = list(keys.values()) if both else [keys[self.hyper.enqueued]]
        new = torch.cat([gather(rows) for rows in chosen])
        self.queue.push(new, torch.zeros(len(new), dtype=torch.int64, device=new.device))


class MocoV3(Moco):
    """Each query of a view must find its own key among the other view's keys of all ranks.

    With two streams the heads normalise all 2N rows together, and the loss of a view has the terms
    of ``hyper.contrast_pairs``. The patch projection of a timm ``VisionTransformer`` is not
    trained, as in MoCo-v3.
    """

    def __init__(
        self,
        network: nn.Module,
        module: ModuleConfig,
        seed: int,
        hyper: MethodConfig,
    ) -> None:
        with drawing(seed, "weights", 1):
            head = normalised_projector(
                feature_width(network),
                hyper.dim,
                hyper.projection_layers,
                hyper.projection_hidden,
            )
            sizes = hyper.dim, hyper.dim, 2, hyper.projection_hidden
            predictor = normalised_projector(*sizes, last_norm=False)
        if is_vision_transformer(network):
            patches: Any = network.patch_embed
            patches.proj.requires_grad_(False)
        super().__init__(network, head, module, seed, hyper)
        self.predictor = predictor

    def queries(self, x: Tensor) -> Tensor:
        """Predictions ``(2N, D)`` of the keys, plain then mixed; ``(N, D)`` of one stream."""
        predicted: Tensor = self.predictor(super().queries(x))
        return predicted

    def step(self, batch: Batch) -> dict[str, Tensor]:
        x, other = batch["x"], batch["view2"]
        n, counts = len(x), row_counts(x)
        queries = [by_stream(self.queries(view), n) for view in (x, other)]
        # Each view's queries are contrasted with the keys of the other view.
        keys = [by_stream(self.keys(view), n) for view in (other, x)]
        losses = [self.view_loss(k + 1, queries[k], keys[k], counts) for k in range(2)]
        seen = collapse_metrics(unit_rows(queries[0]["plain"]), unit_rows(keys[0]["plain"]))
        return {"loss": losses[0] + losses[1], **seen}

    def view_loss(
        self, view: int, queries: dict[str, Tensor], keys: dict[str, Tensor], counts: list[int]
    ) -> Tensor:
        """The contrasts of one view's queries with the keys of all ranks.

        Args:
            queries: (N, D) of each stream.
            keys: (N, D) of each stream, of the other view.
            counts: rows on every rank.
        """
        kind = self.pair_list(queries)
        given = {**keys, "own_mixed": queries["mixed"]} if kind == "readme" else keys
        everyone = {name: gather(rows, counts) for name, rows in given.items()}
        first = rows_of_rank(counts).start
        terms = [
            batch_contrast(queries[query], everyone[key], self.hyper.temperature, first)
            for query, key in stream_pairs(kind, view)
        ]
        return torch.stack(terms).sum() / self.divisor(kind)


def is_vision_transformer(network: nn.Module) -> bool:
    """Whether a network is one of timm's ViTs; does not import timm."""
    family: Any = sys.modules.get("timm.models.vision_transformer")
    return family is not None and isinstance(network, family.VisionTransformer)
