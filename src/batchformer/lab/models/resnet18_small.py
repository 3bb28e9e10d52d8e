"""ResNet-18 for images of CIFAR's size: four stages from 32 down to 4 pixels."""

from __future__ import annotations

from typing import Any

from torch import nn


def resnet18_small(num_classes: int) -> nn.Module:
    """timm's ResNet-18 with a 3x3 stem of stride 1 and without max-pooling.

    The usual network of contrastive learning on CIFAR: the stem of the ImageNet one would leave a
    32x32 image 8x8 pixels before its first block. Convolutions draw from N(0, 2 / (k^2
    out_channels)), and every normalisation begins at scale 1.

    Args:
        num_classes: K.

    >>> sum(p.numel() for p in resnet18_small(10).parameters())
    11173962
    """
    try:
        from timm.models.resnet import BasicBlock, ResNet
    except ImportError as error:
        raise ImportError("ResNet-18 needs: pip install 'batchformer[lab]'") from error
    network: nn.Module = ResNet(
        BasicBlock, (2, 2, 2, 2), num_classes=num_classes, zero_init_last=False
    )
    stem = nn.Conv2d(3, 64, 3, padding=1, bias=False)
    nn.init.kaiming_normal_(stem.weight, mode="fan_out", nonlinearity="relu")
    network.conv1, network.maxpool = stem, nn.Identity()
    listed: Any = network.feature_info
    for stage in listed:
        # What the stem and the pooling of the ImageNet network would divide the sides by.
        stage["reduction"] //= 2 if stage["module"] == "act1" else 4
    return network
