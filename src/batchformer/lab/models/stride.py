"""Where the bottlenecks of a ResNet stride: in their first 1x1 convolution, or in the 3x3.

The first ResNets halve their maps in the 1x1 convolution that a stage begins with, those of
torchvision and timm in the 3x3 after it. Weights of one layout fit the other by name and shape and
compute something else there, so the network has to be told.
"""

from __future__ import annotations

import sys
from typing import Any, Literal

from torch import nn

Place = Literal["1x1", "3x3"]

#: Modules with a class Bottleneck that has the stride in its 3x3 convolution.
HOMES = ("timm.models.resnet", "torchvision.models.resnet")


def move_stride(network: nn.Module, to: Place) -> None:
    """Put the stride of every bottleneck into its first 1x1 or into its 3x3 convolution.

    Shapes of weights and of maps stay as they are, whatever the size of the images.

    Args:
        network: has bottlenecks of timm's or torchvision's ResNet, anywhere in it.
        to: the convolution that strides from now on.

    Raises:
        ValueError: the network has no such bottlenecks, or they stride elsewhere; nothing is moved.

    >>> from torchvision.models import resnet50
    >>> network = resnet50()
    >>> move_stride(network, "1x1")
    >>> network.layer2[0].conv1.stride, network.layer2[0].conv2.stride
    ((2, 2), (1, 1))
    """
    if to not in ("1x1", "3x3"):
        raise ValueError(f"A bottleneck strides in its 1x1 or in its 3x3 convolution, not {to!r}.")
    blocks = _bottlenecks(network)
    strides = [_stride(block) for block in blocks]
    for block, stride in zip(blocks, strides, strict=True):
        first, second = (stride, (1, 1)) if to == "1x1" else ((1, 1), stride)
        block.conv1.stride, block.conv2.stride = first, second


def _bottlenecks(network: nn.Module) -> list[Any]:
    # A class whose home was never imported has no instances.
    kinds = tuple(sys.modules[home].Bottleneck for home in HOMES if home in sys.modules)
    found = [module for module in network.modules() if isinstance(module, kinds)]
    if not found:
        raise ValueError(
            f"This {type(network).__name__} has no bottlenecks of timm's or torchvision's ResNet, "
            "so there is no stride to move between their convolutions. A stride in the 1x1, asked "
            "for by stride 1x1 or by the metadata of a file of weights, is for networks such as "
            "resnet50: name one by --model, or other weights by --weights."
        )
    return found


def _stride(block: Any) -> tuple[int, int]:
    """The stride of a bottleneck's two first convolutions, which has to be all that it has."""
    first, second = block.conv1.stride, block.conv2.stride
    stride = (first[0] * second[0], first[1] * second[1])
    if stride != (block.stride, block.stride):
        raise ValueError(
            f"A bottleneck of this network strides by {block.stride}, its convolutions by "
            f"{stride[0]}: the rest is done by another layer, as by the pooling of networks with "
            "anti-aliasing (resnetaa50). Only a stride of the convolutions can be moved: name "
            "such a network, as resnet50, by --model."
        )
    return stride
