"""A graph of attributes, objects and their pairs, and the network that embeds its nodes."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from batchformer.lab.data.sets.pairs import Compositions


def pair_graph(compositions: Compositions) -> Tensor:
    """The row-normalised adjacency (V, V) of V = A + O + P nodes, a sparse COO tensor.

    Nodes are the attributes, then the objects, then all pairs, seen or not. Each node is joined to
    itself, a pair to its attribute and its object, and these two to each other. The graph is
    symmetric before its rows are divided by their sums.

    >>> pair_graph(Compositions.of([("old", "cat")], [], [])).to_dense()
    tensor([[0.3333, 0.3333, 0.3333],
            [0.3333, 0.3333, 0.3333],
            [0.3333, 0.3333, 0.3333]])
    """
    attributes, objects = len(compositions.attributes), len(compositions.objects)
    nodes = attributes + objects + len(compositions)
    every = torch.arange(nodes)
    attribute, thing = compositions.attribute, compositions.object + attributes
    pair = every[attributes + objects :]
    joined = ((attribute, thing), (attribute, pair), (thing, pair))
    one_way = torch.cat([torch.stack(ends) for ends in joined], 1)
    edges = torch.cat((every.expand(2, -1), one_way, one_way.flip(0)), 1)
    degree = edges[0].bincount(minlength=nodes)
    weights = 1.0 / degree[edges[0]]
    size = (nodes, nodes)
    return torch.sparse_coo_tensor(edges, weights, size, check_invariants=True).coalesce()


def node_features(compositions: Compositions, vectors: Tensor) -> Tensor:
    """Features (A + O + P, D) of the nodes; a pair gets the mean of its attribute and its object.

    `vectors` (A + O, D) are word vectors of the attributes, then of the objects.
    """
    attribute = vectors[compositions.attribute]
    thing = vectors[compositions.object + len(compositions.attributes)]
    return torch.cat((vectors, (attribute + thing) / 2))


class GraphNetwork(nn.Module):
    """Two graph convolutions: nodes (V, D) to directions (V, E) of length one.

    Each applies dropout, a linear layer and the mean over neighbours; ReLU follows the first. The
    rows of the graph (V, V) of `pair_graph` sum to one, so the mean and the linear layer commute,
    bias included. The mean is taken on the side with fewer channels, which saves most of its cost.
    """

    rows: Tensor
    columns: Tensor
    weights: Tensor

    def __init__(
        self, graph: Tensor, in_features: int, hidden: int, out_features: int, dropout: float = 0.5
    ) -> None:
        super().__init__()
        graph = graph.coalesce()
        # They follow from the pairs, so they are not in the state.
        self.register_buffer("rows", graph.indices()[0].clone(), persistent=False)
        self.register_buffer("columns", graph.indices()[1].clone(), persistent=False)
        self.register_buffer("weights", graph.values()[:, None].clone(), persistent=False)
        self.dropout = nn.Dropout(dropout)
        self.first, self.second = nn.Linear(in_features, hidden), nn.Linear(hidden, out_features)

    def propagate(self, x: Tensor) -> Tensor:
        """The weighted mean over each node's neighbours, (V, C) of (V, C), at least in float32.

        It sums over edges instead of a sparse product, because gather and add can be captured in a
        CUDA graph, have gradients for every type, and are deterministic if torch is set so.
        """
        with torch.autocast(x.device.type, enabled=False):
            x = x.to(torch.promote_types(x.dtype, torch.float32))
            messages = x.index_select(0, self.columns) * self.weights.to(x.dtype)
            return torch.zeros_like(x).index_add(0, self.rows, messages)

    def convolve(self, x: Tensor, linear: nn.Linear) -> Tensor:
        """Nodes (V, in) to (V, out): ``propagate(linear(x))``, in the cheaper order."""
        if linear.in_features < linear.out_features:
            wide: Tensor = linear(self.propagate(x))
            return wide
        return self.propagate(linear(x))

    def forward(self, x: Tensor) -> Tensor:
        """Nodes (V, D) to directions (V, E)."""
        hidden = F.relu(self.convolve(self.dropout(x), self.first))
        out = self.convolve(self.dropout(hidden), self.second)
        return F.normalize(out.to(torch.promote_types(out.dtype, torch.float32)), dim=1)
