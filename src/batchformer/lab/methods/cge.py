"""CGE (Naeem et al., 2021): pairs embedded by a graph of attributes, objects and pairs."""

from __future__ import annotations

import copy
from typing import Any, cast

import torch
from torch import Tensor, nn

from batchformer.insight.relations import Relations
from batchformer.lab.config.methods import MethodConfig
from batchformer.lab.config.training import OptimConfig
from batchformer.lab.data.sets.pairs import Compositions
from batchformer.lab.engine.optimizer_step import Batch
from batchformer.lab.methods.classifier import Classifier
from batchformer.lab.methods.head import replace_classifier
from batchformer.lab.models.heads import rectified_embedder
from batchformer.lab.models.pair_graph import GraphNetwork, node_features, pair_graph
from batchformer.nn.randomness import drawing


class OnPairs(Classifier):
    """Images and pairs embedded in one space: trained over seen pairs, predicting over all.

    BatchFormer acts on the network's features, before they are embedded. A method of this kind
    says how pairs are embedded, and what embeds an image.

    Args:
        network: gives pooled features; its classifier is replaced by the identity.
        compositions: the P pairs.
        vectors: (A + O, D), of words: the attributes', then the objects'.
    """

    seen: Tensor
    numbering: Tensor
    embedder: nn.Module

    def __init__(
        self, network: nn.Module, compositions: Compositions, vectors: Tensor, **options: Any
    ) -> None:
        super().__init__(network, nn.CrossEntropyLoss(), **options)
        words = len(compositions.attributes) + len(compositions.objects)
        if vectors.ndim != 2 or len(vectors) != words:
            raise ValueError(
                f"{type(self).__name__} needs a word vector of each of the {words} attributes and "
                f"objects, shape ({words}, D), got {tuple(vectors.shape)}"
            )
        replace_classifier(network, nn.Identity())
        self.compositions = compositions
        numbers = compositions.seen.nonzero()[:, 0]
        numbering = torch.full((len(compositions),), -1)
        numbering[numbers] = torch.arange(len(numbers))
        # They follow from the pairs: no part of the state.
        self.register_buffer("seen", numbers, persistent=False)
        self.register_buffer("numbering", numbering, persistent=False)
        self._embedded: Tensor | None = None
        self.register_load_state_dict_post_hook(_forget_pairs)  # type: ignore[no-untyped-call]

    def embedded_pairs(self, numbers: Tensor | None = None) -> Tensor:
        """Embeddings ``(P, E)`` of all pairs, or of those with these numbers."""
        raise NotImplementedError(f"{type(self).__name__} does not implement embedded_pairs()")

    def head(self, pairs: Tensor) -> nn.Module:
        """The layer that compares embedded images with these pairs, ``(P, E)``."""
        raise NotImplementedError(f"{type(self).__name__} does not implement head()")

    def compared(self, rows: Tensor, pairs: Tensor) -> Tensor:
        """Scores ``(rows, P)`` of features ``(rows, C)`` and pairs ``(P, E)``, in float32.

        Half precision would tie scores that the bias of the evaluation is to tell apart.
        """
        images = self.embedder(rows)
        with torch.autocast(images.device.type, enabled=False):
            scores: Tensor = images.to(pairs.dtype) @ pairs.T
            return scores

    def classify(self, features: Tensor) -> Tensor:
        """Scores ``(rows, P)`` of features ``(rows, C)``, of all pairs."""
        return self.compared(features, self._all_pairs())

    def _all_pairs(self) -> Tensor:
        """Embedded once for an evaluation: until a mode is set, or weights are loaded or moved."""
        if self.training or torch.is_grad_enabled():
            return self.embedded_pairs()
        if self._embedded is None:
            self._embedded = self.embedded_pairs()
        return self._embedded

    def train(self, mode: bool = True) -> Any:
        self._embedded = None
        return super().train(mode)

    def _apply(self, *args: Any, **options: Any) -> Any:
        self._embedded = None
        return super()._apply(*args, **options)  # type: ignore[no-untyped-call]

    def forward(self, x: Tensor) -> Tensor:
        """Scores as trained, ``(2N, S)`` of seen pairs; in eval ``(N, P)``, of all."""
        rows = self.streams(self.features(x))
        if not self.training:
            return self.classify(rows)
        return self.compared(rows, self.embedded_pairs(self.seen))

    def step(self, batch: Batch) -> dict[str, Tensor]:
        return {"loss": self.loss(self(batch["x"]), self.numbering[batch["y"]])}

    def relations(self) -> Relations | None:
        """None: it is trained over seen pairs and predicts over all, with losses of the former."""
        return None

    def deployed(self) -> nn.Module:
        """The network with what embeds an image, and the pairs as they are, for a classifier."""
        fixed = copy.deepcopy(self).eval()
        with torch.no_grad():
            head = fixed.head(fixed.embedded_pairs())
        replace_classifier(fixed.network, nn.Sequential(fixed.embedder, head))
        return fixed.network.train(self.network.training)


def _forget_pairs(method: nn.Module, _: Any) -> None:
    """A hook for loaded weights, which also runs where the method is part of another module."""
    cast(OnPairs, method)._embedded = None


class Cge(OnPairs):
    """Scores are products of an image's features with the directions of pairs.

    The whole network is trained, the backbone at a lower rate. Pairs of all kinds take part in the
    graph, so that those never seen are placed by their neighbours.

    Args:
        network: gives pooled features; its classifier is replaced by the identity.
        compositions: the P pairs.
        vectors: (A + O, D), of words: the attributes', then the objects'. They are not trained.
        seed: of the initial weights of encoder, embedder and graph network.
        hyper: image_embedding, graph_hidden, pair_dropout, backbone_lr_factor.
    """

    nodes: Tensor

    def __init__(
        self,
        network: nn.Module,
        compositions: Compositions,
        vectors: Tensor,
        seed: int,
        hyper: MethodConfig | None = None,
        **options: Any,
    ) -> None:
        super().__init__(network, compositions, vectors, seed=seed, hyper=hyper, **options)
        features, wanted = int(network.num_features), self.hyper.image_embedding  # type: ignore[arg-type]
        self.register_buffer(
            "nodes", node_features(compositions, vectors.float()), persistent=False
        )
        with drawing(seed, "weights", 1):
            self.graph = GraphNetwork(
                pair_graph(compositions),
                vectors.shape[1],
                self.hyper.graph_hidden,
                wanted or features,
                self.hyper.pair_dropout,
            )
            self.embedder = rectified_embedder(features, wanted) if wanted else nn.Identity()

    def embedded_pairs(self, numbers: Tensor | None = None) -> Tensor:
        """Directions ``(P, E)`` of all pairs, or of those with these numbers."""
        pairs: Tensor = self.graph(self.nodes)[-len(self.compositions) :]
        return pairs if numbers is None else pairs.index_select(0, numbers)

    def head(self, pairs: Tensor) -> nn.Module:
        """A linear layer with these rows, ``(P, E)``."""
        linear = nn.Linear(pairs.shape[1], len(pairs), bias=False)
        linear.weight = nn.Parameter(pairs)
        return linear

    def parameter_groups(self, optim: OptimConfig) -> list[dict[str, Any]]:
        """The backbone at its own rate, BatchFormer at the embeddings' times its factor."""
        return self.on_a_backbone(optim, self.graph, self.embedder)
