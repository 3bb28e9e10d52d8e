"""RIDE's networks: early stages shared by all experts, late stages and a head for each."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from batchformer.insight.optional import extra
from batchformer.lab.models.heads import CosineClassifier
from batchformer.lab.models.networks import ResNetCifar, conv_norm_relu, resnet32


class RideNetwork(nn.Module):
    """Experts on a shared trunk; the prediction is the mean of their logits.

    `num_features` is C, the channels of one expert's features.

    Args:
        shared: images to the maps that all experts use.
        branches: one for each of E experts, those maps to the expert's own, (N, C, H, W).
    """

    def __init__(
        self,
        shared: nn.Module,
        branches: Sequence[nn.Module],
        num_features: int,
        num_classes: int,
        scale: float = 30.0,
    ) -> None:
        super().__init__()
        self.num_features, self.num_classes = num_features, num_classes
        self.shared = shared
        self.branches = nn.ModuleList(branches)
        self.classifiers = nn.ModuleList(
            CosineClassifier(num_features, num_classes, scale) for _ in branches
        )

    @property
    def experts(self) -> int:
        """E, the number of experts."""
        return len(self.branches)

    def expert_features(self, x: Tensor) -> Tensor:
        """Images (N, channels, H, W) to pooled features (E, N, C)."""
        maps = self.shared(x)
        return torch.stack([branch(maps).mean((2, 3)) for branch in self.branches])

    def classify(self, features: Tensor, expert: int) -> Tensor:
        """Features (rows, C) of one expert to its logits (rows, K)."""
        logits: Tensor = self.classifiers[expert](features)
        return logits

    def expert_logits(self, features: Tensor) -> Tensor:
        """Features (E, rows, C) to logits (E, rows, K), each expert's by its own classifier."""
        if features.ndim != 3 or len(features) != self.experts:
            raise ValueError(
                f"expert_logits needs features ({self.experts}, rows, {self.num_features}) of all "
                f"{self.experts} experts, got {tuple(features.shape)}"
            )
        return torch.stack([self.classify(rows, i) for i, rows in enumerate(features.unbind())])

    def forward(self, x: Tensor) -> Tensor:
        """Images (N, channels, H, W) to logits (N, K), the mean over experts."""
        return self.expert_logits(self.expert_features(x)).mean(0)

    def get_classifier(self) -> nn.ModuleList:
        """The layers from features to logits, one per expert."""
        return self.classifiers


class CifarTrunk(nn.Module):
    """Stem and first stage of a CIFAR ResNet."""

    def __init__(self, network: ResNetCifar) -> None:
        super().__init__()
        self.conv1, self.bn1, self.layer1 = network.conv1, network.bn1, network.layer1

    def forward(self, x: Tensor) -> Tensor:
        """(N, in_channels, H, W) to (N, widths[0], H, W)."""
        maps: Tensor = self.layer1(conv_norm_relu(x, self.conv1, self.bn1))
        return maps


def ride_resnet32(
    num_classes: int,
    experts: int = 3,
    in_channels: int = 3,
    widths: tuple[int, int, int] = (16, 24, 48),
    depth: int = 32,
    scale: float = 30.0,
) -> RideNetwork:
    """RIDE for 32x32 images: shared stem and first stage, narrower second and third stages.

    `depth` counts the layers with weights in one expert: 20, 32, 44, ...

    >>> sum(p.numel() for p in ride_resnet32(100).parameters())
    783856
    """
    _require_experts(experts)
    networks = [resnet32(1, in_channels, widths, depth) for _ in range(experts)]
    branches = [
        nn.Sequential(OrderedDict(layer2=network.layer2, layer3=network.layer3))
        for network in networks
    ]
    return RideNetwork(CifarTrunk(networks[0]), branches, widths[-1], num_classes, scale)


def ride_resnet10(num_classes: int, experts: int = 3, scale: float = 30.0) -> RideNetwork:
    """RIDE on ResNet-10 (one basic block in each stage), for 224x224 images."""
    return _ride_imagenet("BasicBlock", (1, 1, 1, 1), num_classes, experts, scale)


def ride_resnet50(num_classes: int, experts: int = 3, scale: float = 30.0) -> RideNetwork:
    """RIDE on ResNet-50, for 224x224 images."""
    return _ride_imagenet("Bottleneck", (3, 4, 6, 3), num_classes, experts, scale)


def ride_resnext50(num_classes: int, experts: int = 3, scale: float = 30.0) -> RideNetwork:
    """RIDE on ResNeXt-50 32x4d, for 224x224 images."""
    groups = {"cardinality": 32, "base_width": 4}
    return _ride_imagenet("Bottleneck", (3, 4, 6, 3), num_classes, experts, scale, **groups)


#: Widths of the plain ResNet, with the two stages of each expert narrower by a quarter.
IMAGENET_WIDTHS = (64, 128, 192, 384)


def _ride_imagenet(
    block: str,
    blocks: tuple[int, int, int, int],
    num_classes: int,
    experts: int,
    scale: float,
    **options: Any,
) -> RideNetwork:
    """A shared stem and two stages of timm's ResNet, and two more stages per expert."""
    with extra("lab"):
        from timm.models import resnet
    _require_experts(experts)
    networks = [
        resnet.ResNet(
            getattr(resnet, block),
            blocks,
            num_classes=0,
            channels=IMAGENET_WIDTHS,
            zero_init_last=False,
            **options,
        )
        for _ in range(experts)
    ]
    trunk = ("conv1", "bn1", "act1", "maxpool", "layer1", "layer2")
    shared = nn.Sequential(OrderedDict((name, getattr(networks[0], name)) for name in trunk))
    branches = [
        nn.Sequential(OrderedDict(layer3=network.layer3, layer4=network.layer4))
        for network in networks
    ]
    return RideNetwork(shared, branches, networks[0].num_features, num_classes, scale)


def _require_experts(experts: int) -> None:
    if experts < 1:
        raise ValueError(f"RIDE needs at least one expert, got {experts}")
