"""Training a part of a network and leaving the rest as it is."""

from __future__ import annotations

from torch import nn


def train_last_block(network: nn.Module) -> None:
    """Stop the gradients of every convolution of a ResNet but those of its last block.

    Normalisation and the classifier go on to be trained, as in PaCo's code for Places-LT.

    >>> from batchformer.lab.models.resnet10 import resnet10
    >>> network = resnet10(10)
    >>> train_last_block(network)
    >>> network.conv1.weight.requires_grad, network.layer4[-1].conv1.weight.requires_grad
    (False, True)
    """
    stage = getattr(network, "layer4", None)
    if not isinstance(stage, nn.Sequential) or len(stage) == 0:
        raise ValueError(
            f"Only a ResNet of four stages has a last block to train; {type(network).__name__} has "
            "none: train all its convolutions."
        )
    kept = set(stage[-1].modules())
    for module in network.modules():
        if isinstance(module, nn.Conv2d) and module not in kept:
            module.requires_grad_(False)
