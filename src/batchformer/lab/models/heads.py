"""Classifier heads, projections and embedders that torch lacks, and how networks get them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from batchformer.lab.models.networks import WithClassifier


class CosineClassifier(nn.Module):
    """Cosines between features and class vectors, times a scale.

    Both are normalised, so a frequent class cannot win by a long vector alone. The class vectors
    start as random directions of length one.

    >>> head = CosineClassifier(4, 3, scale=30.0)
    >>> head(2 * head.weight).diagonal().detach().round()  # a class's own direction
    tensor([30., 30., 30.])
    """

    def __init__(self, in_features: int, num_classes: int, scale: float = 30.0) -> None:
        super().__init__()
        self.in_features, self.out_features, self.scale = in_features, num_classes, scale
        self.weight = nn.Parameter(torch.empty(num_classes, in_features))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new class vectors: uniform in a cube, then normalised.

        The gradient of a direction shrinks with the vector's length, so the length matters.
        """
        with torch.no_grad():
            self.weight.uniform_(-1, 1)
            self.weight.copy_(F.normalize(self.weight, dim=1))

    def forward(self, x: Tensor) -> Tensor:
        """Features (N, C) to logits (N, K); a feature of zeros has logits of zero."""
        return self.scale * F.linear(F.normalize(x, dim=-1), F.normalize(self.weight, dim=1))

    def extra_repr(self) -> str:
        """Sizes and scale, for ``print``."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"scale={self.scale:g}"
        )


# Networks with another classifier, and with a layer before it.


def replace_classifier(network: nn.Module, head: nn.Module) -> None:
    """Replace the module that ``network.get_classifier()`` returns by `head`.

    >>> from batchformer.lab.models.networks import digits_net
    >>> network = digits_net(10)
    >>> replace_classifier(network, nn.Linear(64, 3))
    >>> network.fc
    Linear(in_features=64, out_features=3, bias=True)
    """
    parent, _, child = classifier_name(network).rpartition(".")
    setattr(network.get_submodule(parent), child, head)


def classifier_name(network: nn.Module) -> str:
    """The name of the module that ``network.get_classifier()`` returns, such as ``fc``."""
    contract: Any = network
    head = contract.get_classifier()
    name: str = next(name for name, module in network.named_modules() if module is head)
    return name


def feature_width(network: Any) -> int:
    """Channels C of a network's pooled features, which its classifier reads.

    timm's ``num_features`` counts the channels of the feature maps. In some networks, such as
    MobileNetV3, the head widens them before the classifier.
    """
    return int(getattr(network, "head_hidden_size", network.num_features))


class WithFeatureLayer(WithClassifier):
    """A network with a linear layer and ReLU between its pooled features and its classifier.

    Like its body, it has timm's contract; its features (N, C) are those after the layer. The body
    loses its classifier; `fc` takes its place.

    >>> from batchformer.lab.models.networks import digits_net
    >>> network = WithFeatureLayer(digits_net(10), 32)
    >>> network.num_features, network.get_classifier()
    (32, Linear(in_features=32, out_features=10, bias=True))
    """

    def __init__(self, body: nn.Module, width: int) -> None:
        super().__init__()
        contract: Any = body
        if not hasattr(body, "forward_head"):
            raise ValueError(
                f"hyper.feature-layer {width} stands between pooled features and one classifier, "
                f"and {type(body).__name__} has several; set --hyper.feature-layer 0"
            )
        head = contract.get_classifier()
        classes = int(head.out_channels if isinstance(head, nn.Conv2d) else head.out_features)
        replace_classifier(body, nn.Identity())
        self.body, self.num_features = body, width
        self.layer = nn.Linear(feature_width(body), width)
        self.fc = nn.Linear(width, classes)

    def forward_features(self, x: Tensor) -> Tensor:
        """The body's features of images (N, channels, H, W), before pooling."""
        body: Any = self.body
        maps: Tensor = body.forward_features(x)
        return maps

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """The body's features to logits (N, K), or to features (N, C) with `pre_logits`."""
        body: Any = self.body
        features = F.relu(self.layer(body.forward_head(x, pre_logits=True)))
        return features if pre_logits else self.fc(features)


# Projections in which contrastive methods compare samples: MoCo-v2, MoCo-v3, PaCo.


def projector(
    channels: int, dim: int, layers: int, hidden: int, front: bool = False
) -> nn.Sequential:
    """MoCo-v2's head: linear layers with biases, and ReLU between them.

    `front` puts a linear layer of C channels with batch normalisation and ReLU first. It is the
    same with and without BatchFormer; the released code has the front only with BatchFormer.

    >>> projector(8, 2, layers=2, hidden=4)
    Sequential(
      (0): Linear(in_features=8, out_features=4, bias=True)
      (1): ReLU()
      (2): Linear(in_features=4, out_features=2, bias=True)
    )
    """
    parts: list[nn.Module] = []
    for before, after in pairwise(_widths(channels, dim, layers, hidden)):
        parts += [nn.ReLU()] if parts else []
        parts.append(nn.Linear(before, after))
    if front:
        parts = [nn.Linear(channels, channels), nn.BatchNorm1d(channels), nn.ReLU(), *parts]
    return nn.Sequential(*parts)


def normalised_projector(
    channels: int, dim: int, layers: int, hidden: int, last_norm: bool = True
) -> nn.Sequential:
    """MoCo-v3's projector: linear layers without biases, each with batch normalisation.

    MoCo-v3 has 2 layers for a ResNet and 3 for a ViT. ReLU follows each normalisation but the last,
    which has no scale and shift. Its predictor does not normalise outputs (`last_norm` is False).
    """
    parts: list[nn.Module] = []
    widths = _widths(channels, dim, layers, hidden)
    for before, after in pairwise(widths[:-1]):
        parts += [nn.Linear(before, after, bias=False), nn.BatchNorm1d(after), nn.ReLU()]
    parts.append(nn.Linear(widths[-2], dim, bias=False))
    parts += [nn.BatchNorm1d(dim, affine=False)] if last_norm else []
    return nn.Sequential(*parts)


def _widths(channels: int, dim: int, layers: int, hidden: int) -> list[int]:
    if layers < 1:
        raise ValueError(f"A projection needs at least one linear layer, got layers={layers}.")
    return [channels, *[hidden] * (layers - 1), dim]


class Projection(nn.Module):
    """Two linear layers, batch normalisation and ReLU between; outputs have length one."""

    def __init__(self, in_features: int, dim: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(in_features, in_features)
        self.norm = nn.BatchNorm1d(in_features)
        self.output = nn.Linear(in_features, dim)

    def forward(self, x: Tensor) -> Tensor:
        """Features (N, C) to directions (N, D)."""
        return F.normalize(self.output(F.relu(self.norm(self.hidden(x)))), dim=1)


def normalised_embedder(features: int, hidden: int, dim: int, dropout: float) -> nn.Sequential:
    """Features (rows, C) to (rows, D) by a hidden layer (rows, H) with layer norm, as in CompCos.

    >>> [type(layer).__name__ for layer in normalised_embedder(512, 768, 300, 0.5)]
    ['Linear', 'LayerNorm', 'ReLU', 'Dropout', 'Linear']
    """
    return nn.Sequential(
        nn.Linear(features, hidden),
        nn.LayerNorm(hidden),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(hidden, dim),
    )
