"""CGE (Naeem et al., 2021) and CompCos (Mancini et al., 2021): pairs of attribute and object."""

from __future__ import annotations

import copy
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from batchformer.insight.relations import Relations
from batchformer.lab.config.training import OptimConfig
from batchformer.lab.data.sets.pairs import Compositions
from batchformer.lab.engine.optimizer_step import Batch
from batchformer.lab.methods.classifier import Classifier
from batchformer.lab.methods.two_stage import OnFrozenFeatures
from batchformer.lab.models.heads import (
    CosineClassifier,
    feature_width,
    normalised_embedder,
    replace_classifier,
)
from batchformer.lab.models.pair_graph import GraphNetwork, node_features, pair_graph
from batchformer.nn.randomness import drawing

#: Added to the cosine of a pair that is not compared.
EXCLUDED = -10.0


class PairClassifier(Classifier):
    """Embeds images and pairs in one space; trains over seen pairs and predicts over all.

    BatchFormer acts on the network's features, before they are embedded. A subclass implements
    how pairs are embedded, and sets `embedder`, the module that embeds images.

    Args:
        network: gives pooled features; its classifier is replaced by the identity.
        compositions: the P pairs.
        vectors: (A + O, D) word vectors, of the attributes and then of the objects.
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
        # Not part of the state: they follow from the pairs.
        self.register_buffer("seen", numbers, persistent=False)
        self.register_buffer("numbering", numbering, persistent=False)
        self._embedded: Tensor | None = None
        self.register_load_state_dict_post_hook(_reset_embedded_pairs)  # type: ignore[no-untyped-call]

    def embedded_pairs(self, numbers: Tensor | None = None) -> Tensor:
        """Embeddings ``(P, E)`` of all pairs, or of those with these numbers."""
        raise NotImplementedError(f"{type(self).__name__} does not implement embedded_pairs()")

    def head(self, pairs: Tensor) -> nn.Module:
        """The layer that compares embedded images with these pairs, ``(P, E)``."""
        raise NotImplementedError(f"{type(self).__name__} does not implement head()")

    def compared(self, rows: Tensor, pairs: Tensor) -> Tensor:
        """Scores ``(rows, P)`` of features ``(rows, C)`` and pairs ``(P, E)``, in float32.

        In half precision scores would tie, and the evaluation's bias could not separate them.
        """
        images = self.embedder(rows)
        with torch.autocast(images.device.type, enabled=False):
            scores: Tensor = images.to(pairs.dtype) @ pairs.T
            return scores

    def classify(self, features: Tensor) -> Tensor:
        """Features ``(rows, C)`` to scores ``(rows, P)`` of all pairs."""
        return self.compared(features, self._all_pairs())

    def _all_pairs(self) -> Tensor:
        """All pairs embedded, at test cached until a mode is set or weights are loaded or moved."""
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
        """None: predictions are over all pairs, and the loss is over seen ones."""
        return None

    def deployed(self) -> nn.Module:
        """The network, with the image embedder and the fixed pairs as its classifier."""
        fixed = copy.deepcopy(self).eval()
        with torch.no_grad():
            head = fixed.head(fixed.embedded_pairs())
        replace_classifier(fixed.network, nn.Sequential(fixed.embedder, head))
        return fixed.network.train(self.network.training)


def _reset_embedded_pairs(method: nn.Module, _: Any) -> None:
    """A hook for loaded weights, which also runs if the method is part of another module."""
    cast(PairClassifier, method)._embedded = None


class Cge(PairClassifier):
    """CGE: scores are products of image features with pairs embedded by a graph network.

    The graph has attributes, objects and all pairs, so that unseen pairs get their place from their
    neighbours. The whole network is trained, the backbone at a lower rate.

    Args:
        vectors: (A + O, D) word vectors, of attributes and then objects; they are not trained.
    """

    nodes: Tensor

    def __init__(
        self,
        network: nn.Module,
        compositions: Compositions,
        vectors: Tensor,
        seed: int,
        **options: Any,
    ) -> None:
        super().__init__(network, compositions, vectors, seed=seed, **options)
        features, wanted = feature_width(network), self.hyper.image_embedding
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
            self.embedder = nn.Identity()
            if wanted:  # as on UT-Zappos
                self.embedder = nn.Sequential(nn.Linear(features, wanted), nn.ReLU())

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
        """The backbone at its own rate, BatchFormer at the embeddings' rate times its factor."""
        return self.slow_backbone_groups(optim, self.graph, self.embedder)


class CompCos(PairClassifier, OnFrozenFeatures):
    """CompCos: cosines of images, embedded from frozen features, with composed pairs.

    A pair is composed of the embeddings of its attribute and its object. Scores are cosines times
    ``hyper.cosine_scale``. Training compares the seen pairs. With ``hyper.feasibility="margin"`` it
    compares all pairs, and lowers the cosine of an unseen one by a margin in proportion to its
    feasibility: unseen pairs are pushed away from images of seen ones, but feasible pairs less so.
    Margins are computed again at the beginning of each epoch, and grow over
    ``hyper.feasibility_epochs``; before they grow, in the first epoch, no unseen pair is compared,
    as in the authors' code. Predictions have no margin.

    Args:
        network: gives pooled features; it is not trained, and its classifier is removed.
        compositions: the P pairs; with margins, the pairs of an open world.
        vectors: (A + O, D) word vectors, which initialise the attributes' and objects' embeddings.
    """

    attribute: Tensor
    object: Tensor
    margins: Tensor
    margins_of: Tensor

    def __init__(
        self,
        network: nn.Module,
        compositions: Compositions,
        vectors: Tensor,
        seed: int,
        **options: Any,
    ) -> None:
        super().__init__(network, compositions, vectors, seed=seed, **options)
        hyper, dim = self.hyper, self.hyper.image_embedding
        words, count = vectors.detach().float(), len(compositions.attributes)
        self.attributes = nn.Parameter(words[:count].clone())
        self.objects = nn.Parameter(words[count:].clone())
        with drawing(seed, "weights", 1):
            self.composition = nn.Linear(2 * vectors.shape[1], dim)
            sizes = feature_width(network), hyper.image_hidden, dim
            self.embedder = normalised_embedder(*sizes, hyper.pair_dropout)
        self.register_buffer("attribute", compositions.attribute, persistent=False)
        self.register_buffer("object", compositions.object, persistent=False)
        # Part of the state: a run resumed within an epoch continues with that epoch's margins.
        self.register_buffer("margins", torch.zeros(len(compositions)))
        self.register_buffer("margins_of", torch.tensor(-1))

    def embedded_pairs(self, numbers: Tensor | None = None) -> Tensor:
        """Directions ``(P, E)`` of all pairs, or of those with these numbers."""
        attribute, thing = self.attribute, self.object
        if numbers is not None:
            attribute, thing = attribute[numbers], thing[numbers]
        # Equals the linear layer on the concatenation, but maps each embedding only once.
        left, right = self.composition.weight.chunk(2, dim=1)
        with torch.autocast(left.device.type, enabled=False):
            of_attribute = F.linear(self.attributes, left, self.composition.bias)
            of_object = F.linear(self.objects, right)
            return F.normalize(
                of_attribute.index_select(0, attribute) + of_object.index_select(0, thing), dim=1
            )

    def compared(self, rows: Tensor, pairs: Tensor) -> Tensor:
        """Cosines of features ``(rows, C)`` with pairs ``(P, E)``, scaled; ``(rows, P)``."""
        images = self.embedder(rows)
        with torch.autocast(images.device.type, enabled=False):
            directions = F.normalize(images.to(pairs.dtype), dim=1)
            return self.hyper.cosine_scale * (directions @ pairs.T)

    def head(self, pairs: Tensor) -> nn.Module:
        """A cosine classifier with these directions, ``(P, E)``."""
        head = CosineClassifier(pairs.shape[1], len(pairs), self.hyper.cosine_scale)
        head.weight = nn.Parameter(pairs)
        return head

    def forward(self, x: Tensor) -> Tensor:
        """Scores as trained, ``(2N, S)``, or with margins ``(2N, P)``; in eval ``(N, P)``."""
        if not (self.training and self.hyper.feasibility == "margin"):
            return super().forward(x)
        scores = self.classify(self.streams(self.features(x)))
        return scores + self.hyper.cosine_scale * self.margins

    def step(self, batch: Batch) -> dict[str, Tensor]:
        if self.hyper.feasibility == "margin":
            return {"loss": self.loss(self(batch["x"]), batch["y"])}
        return super().step(batch)

    @torch.no_grad()
    def feasibility(self) -> Tensor:
        """How feasible each pair is, ``(P,)``, by the current embeddings; 1 for seen pairs."""
        return pair_feasibility(self.compositions, self.attributes, self.objects)

    def begin_epoch(self, epoch: int) -> None:
        if self.hyper.feasibility == "none" or int(self.margins_of) == epoch:
            return
        growth = self.hyper.feasibility_epochs
        share = min(1.0, epoch / growth) if growth else 1.0
        lowered = -share * self.hyper.feasibility_margin * self.feasibility()
        unseen = ~self.compositions.seen.to(self.margins.device)
        # In place: a captured update reads this buffer.
        self.margins.copy_(unseen * (lowered if share else EXCLUDED))
        self.margins_of.fill_(epoch)


def pair_feasibility(compositions: Compositions, attributes: Tensor, objects: Tensor) -> Tensor:
    """How feasible pairs are, ``(P,)``, in cosines; 1 for seen ones.

    An unseen pair has the mean of two cosines: of its object with the nearest object seen with its
    attribute, and of its attribute with the nearest attribute seen with its object. If none was
    seen, the cosine counts as -1.

    Args:
        attributes: (A, D) embeddings.
        objects: (O, D) embeddings.

    >>> few = Compositions.of([("old", "cat"), ("wet", "dog")], [], [("wet", "cat")])
    >>> attributes, objects = torch.tensor([[1.0, 0], [0, 1]]), torch.tensor([[1.0, 0], [2, 0]])
    >>> pair_feasibility(few, attributes, objects)
    tensor([1.0000, 0.5000, 1.0000])
    """
    device = attributes.device
    attribute, thing = compositions.attribute.to(device), compositions.object.to(device)
    seen = compositions.seen.to(device)
    together = torch.zeros(len(attributes), len(objects), dtype=torch.bool, device=device)
    together[attribute[seen], thing[seen]] = True
    nearest = _nearest(objects, together) + _nearest(attributes, together.T).T
    return torch.where(seen, 1.0, nearest[attribute, thing] / 2)


def _nearest(embeddings: Tensor, together: Tensor) -> Tensor:
    """(M, V): for each of M partners, every embedding's highest cosine with those seen with it.

    Args:
        embeddings: (V, D).
        together: (M, V) bool, which were seen together.
    """
    directions = F.normalize(embeddings, dim=1)
    cosines = directions @ directions.T
    # One at a time: all at once would take a gigabyte on C-GQA.
    return torch.stack([cosines.masked_fill(~own, -1.0).amax(dim=1) for own in together])
