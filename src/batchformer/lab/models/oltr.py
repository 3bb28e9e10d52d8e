"""What OLTR (Liu et al., 2019) adds to a network: spatial attention, and a head with a memory."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

#: Closeness to the nearest centroid is this divided by the distance.
REACH = 10.0
#: Factor of the logits.
SCALE = 16.0
#: Least distance to a centroid; a feature on a centroid would be infinitely close.
LEAST = 1e-6


class SpatialAttention(nn.Module):
    """Adds to maps (N, C, S, S) what positions attend to, weighted by a softmax over positions.

    A non-local block with half the channels gives ``m``, one linear layer on the whole map gives a
    weight ``a`` for each position, and the output is ``x + a m``. Its authors mean the block to
    begin as the identity. Their network then initialises all its convolutions again, which is done
    here too.
    """

    def __init__(self, channels: int, side: int) -> None:
        super().__init__()
        self.channels, self.side = channels, side
        half = max(channels // 2, 1)
        self.query, self.key, self.value = (nn.Conv2d(channels, half, 1) for _ in range(3))
        self.output = nn.Conv2d(half, channels, 1, bias=False)
        self.weights = nn.Linear(side * side * channels, side * side)
        for module in self.children():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, S, S) to the same shape."""
        if x.shape[1:] != (self.channels, self.side, self.side):
            raise ValueError(
                f"the attention of oltr is for maps of {self.channels} channels and "
                f"{self.side}x{self.side} positions, and got {tuple(x.shape[1:])}: set "
                "--hyper.attention-side to their side, and --hyper.attention-after to the "
                "network's last stage"
            )
        query, key, value = (part(x).flatten(2) for part in (self.query, self.key, self.value))
        shares = (query.transpose(1, 2) @ key).softmax(-1)  # (N, S * S, S * S)
        mixed = (value @ shares.transpose(1, 2)).unflatten(2, (self.side, self.side))
        weights = self.weights(x.flatten(1)).softmax(1).view(-1, 1, self.side, self.side)
        added: Tensor = weights * self.output(mixed)
        return x + added


class MetaEmbedding(nn.Module):
    """OLTR's head: cosines of features to which a memory adds, scaled by their closeness to it.

    A feature v gets ``u = reach (v + tanh(S v) softmax(H v) M)`` with ``reach = 10 / distance`` to
    the nearest centroid. Its logit of class k is ``16 u / (1 + |u|)`` times the direction of the
    class vector. H, the hallucinator, is the linear classifier of the first stage. The centroids M
    (K, C) are zero until they are set, and have no gradient from here: a loss of their own trains
    them.
    """

    def __init__(self, hallucinator: nn.Linear) -> None:
        super().__init__()
        features, classes = hallucinator.in_features, hallucinator.out_features
        self.in_features, self.out_features = features, classes
        self.hallucinator = hallucinator
        self.selector = nn.Linear(features, features)
        self.weight = nn.Parameter(torch.empty(classes, features))
        nn.init.uniform_(self.weight, -(features**-0.5), features**-0.5)
        self.centroids = nn.Parameter(torch.zeros(classes, features))

    def forward(self, x: Tensor) -> Tensor:
        """Features (N, C) to logits (N, K), in single precision at least."""
        with torch.autocast(x.device.type, enabled=False):
            u = self.embed(x.to(torch.promote_types(x.dtype, self.weight.dtype)))
            u = u / (1 + u.norm(dim=1, keepdim=True))
            return SCALE * F.linear(u, F.normalize(self.weight, dim=1))

    def embed(self, v: Tensor) -> Tensor:
        """Features (N, C) to meta-embeddings u (N, C)."""
        memory = self.centroids.detach()
        with torch.no_grad():
            nearest = torch.cdist(v, memory).argmin(1)
        distance = (v - memory[nearest]).norm(dim=1, keepdim=True)
        recalled = self.hallucinator(v).softmax(1) @ memory
        reach = REACH / distance.clamp(min=LEAST)
        embedded: Tensor = reach * (v + self.selector(v).tanh() * recalled)
        return embedded
