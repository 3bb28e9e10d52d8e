"""MoCo-v3 (Chen et al., 2021): queries of each view against the keys of the other."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor, nn

from batchformer.lab.config.methods import MethodConfig, ModuleConfig, require_contrast_sense
from batchformer.lab.engine.optimizer_step import Batch
from batchformer.lab.losses.contrast import batch_contrast, stream_pairs
from batchformer.lab.methods.moco import Moco, by_stream, directions, watched
from batchformer.lab.models.heads import normalised_projector, predictor
from batchformer.nn.exchange import gather, own_rows, row_counts
from batchformer.nn.randomness import drawing


class MocoV3(Moco):
    """Each query tells its own key from those of the batch, on all ranks; both ways.

    With two streams the heads normalise all 2N rows together, and the loss of a view has the terms
    of ``hyper.contrast_pairs``. The patch projection of a timm ``VisionTransformer`` stays as it
    is, as in MoCo-v3.

    Args:
        network: encodes the queries, with timm's contract.
        module: BatchFormer's settings.
        seed: of the initial weights of encoder and heads.
        hyper: temperature, dim, momentum, momentum_schedule, projection_layers and _hidden,
            contrast_pairs.
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
        require_contrast_sense("moco_v3", module, hyper)
        with drawing(seed, "weights", 1):
            head = normalised_projector(
                int(network.num_features),  # type: ignore[arg-type]
                hyper.dim,
                hyper.projection_layers,
                hyper.projection_hidden,
            )
            answer = predictor(hyper.dim, hyper.projection_hidden)
        if is_vision_transformer(network):
            patches: Any = network.patch_embed
            patches.proj.requires_grad_(False)
        super().__init__(network, head, module, seed, hyper)
        self.predictor = answer

    def queries(self, x: Tensor) -> Tensor:
        """Predictions ``(2N, D)`` of the keys, plain then mixed; ``(N, D)`` of one stream."""
        predicted: Tensor = self.predictor(super().queries(x))
        return predicted

    def step(self, batch: Batch) -> dict[str, Tensor]:
        x, other = batch["x"], batch["view2"]
        n, counts = len(x), row_counts(x)
        queries = [by_stream(self.queries(view), n) for view in (x, other)]
        # Each view's queries meet the keys of the other view.
        keys = [by_stream(self.keys(view), n) for view in (other, x)]
        losses = [self.view_loss(k + 1, queries[k], keys[k], counts) for k in range(2)]
        seen = watched(directions(queries[0]["plain"]), directions(keys[0]["plain"]))
        return {"loss": losses[0] + losses[1], **seen}

    def view_loss(
        self, view: int, queries: dict[str, Tensor], keys: dict[str, Tensor], counts: list[int]
    ) -> Tensor:
        """The contrasts of one view's queries with the keys of all ranks.

        Args:
            view: 1 or 2.
            queries: (N, D) of each stream.
            keys: (N, D) of each stream, of the other view.
            counts: rows on every rank.
        """
        kind = self.pair_list(queries)
        given = {**keys, "own_mixed": queries["mixed"]} if kind == "readme" else keys
        everyone = {name: gather(rows, counts) for name, rows in given.items()}
        first = own_rows(counts).start
        terms = [
            batch_contrast(queries[query], everyone[key], self.hyper.temperature, first)
            for query, key in stream_pairs(kind, view)
        ]
        return torch.stack(terms).sum() / self.divisor(kind)


def is_vision_transformer(network: nn.Module) -> bool:
    """Whether a network is of timm's ViT family, which is not imported to find out."""
    family: Any = sys.modules.get("timm.models.vision_transformer")
    return family is not None and isinstance(network, family.VisionTransformer)
