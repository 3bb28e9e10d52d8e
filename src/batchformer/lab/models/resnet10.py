"""ResNet-10: the plain ImageNet ResNet with one basic block in each of its four stages."""

from __future__ import annotations

from torch import nn


def resnet10(num_classes: int) -> nn.Module:
    """ResNet-10 with timm's contract, as long-tailed recognition trains it on ImageNet-LT.

    Convolutions draw from N(0, 2 / (k^2 out_channels)) and every normalisation begins at scale 1,
    also the last one of a block, which timm's named networks begin at 0.

    Args:
        num_classes: K.

    >>> sum(p.numel() for p in resnet10(1000).parameters())
    5418792
    """
    try:
        from timm.models.resnet import BasicBlock, ResNet
    except ImportError as error:
        raise ImportError("ResNet-10 needs: pip install 'batchformer[lab]'") from error
    network: nn.Module = ResNet(
        BasicBlock, (1, 1, 1, 1), num_classes=num_classes, zero_init_last=False
    )
    return network
