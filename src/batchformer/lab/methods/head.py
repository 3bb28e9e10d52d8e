"""Replacing the layer that makes logits of features."""

from __future__ import annotations

from typing import Any

from torch import nn


def classifier_of(network: nn.Module) -> nn.Linear:
    """The network's linear classifier, or an error that says what was found instead."""
    contract: Any = network
    found = contract.get_classifier()
    if not isinstance(found, nn.Linear):
        raise ValueError(
            f"This method needs a linear classifier; {type(network).__name__} has "
            f"{type(found).__name__}. Start from a method that trains one, such as cross_entropy."
        )
    return found


def replace_classifier(network: nn.Module, head: nn.Module) -> None:
    """Put `head` in the place of what ``network.get_classifier()`` gives.

    >>> from batchformer.lab.models.networks import digits_net
    >>> network = digits_net(10)
    >>> replace_classifier(network, nn.Linear(64, 3))
    >>> network.fc
    Linear(in_features=64, out_features=3, bias=True)
    """
    contract: Any = network
    old = contract.get_classifier()
    name = next(name for name, module in network.named_modules() if module is old)
    parent, _, child = name.rpartition(".")
    setattr(network.get_submodule(parent), child, head)
