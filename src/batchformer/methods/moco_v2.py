"""MoCo-v2 (Chen et al., 2020): queries against their keys and a queue of earlier ones."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from batchformer.engine.config import require
from batchformer.engine.mechanics import Batch
from batchformer.exchange import gather
from batchformer.losses.info_nce import queue_contrast, stream_pairs
from batchformer.methods.config import MethodConfig, ModuleConfig
from batchformer.methods.moco import Moco, by_stream, directions, watched
from batchformer.methods.queue import KeyQueue
from batchformer.models.contrast_heads import projector
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

    Args:
        network: encodes the queries, with timm's contract.
        module: BatchFormer's settings.
        seed: of the initial weights of encoder and head.
        hyper: temperature, queue, dim, momentum, projection_layers and _hidden, contrast_pairs,
            enqueued.
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
        require(
            not module.enabled or hyper.contrast_pairs in ("all", "plain"),
            f"hyper.contrast-pairs {hyper.contrast_pairs} is a list of the released MoCo-v3; "
            "moco_v2 has all and plain",
        )
        with drawing(seed, "weights", 1):
            head = projector(
                int(network.num_features),  # type: ignore[arg-type]
                hyper.dim,
                hyper.projection_layers,
                hyper.projection_hidden,
            )
        super().__init__(network, head, module, seed, hyper)
        self.queue = KeyQueue(hyper.queue, hyper.dim)

    def step(self, batch: Batch) -> dict[str, Tensor]:
        queries = by_stream(directions(self.queries(batch["x"])), len(batch["x"]))
        keys = self.key_streams(batch["view2"])
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
    def key_streams(self, x: Tensor) -> dict[str, Tensor]:
        """Directions (N, D) of each stream of images, which ranks shuffle for the encoder."""
        images, shuffled = shuffle(x, self._shuffle_seed())
        streams = by_stream(directions(self.keys(images)), len(x))
        return {name: unshuffle(rows, shuffled) for name, rows in streams.items()}

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
