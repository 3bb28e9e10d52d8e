"""Two branches in place of a network's last block, as in BBN."""

from __future__ import annotations

import copy
from typing import Any, Literal

import torch
from torch import Tensor, nn

from batchformer.lab.models.heads import feature_width

Branch = Literal["both", "conventional", "rebalancing"]


class TwoBranches(nn.Module):
    """Two blocks of the same shape, side by side.

    Attributes:
        branch: which of them are computed; "both" gives their channels one after the other.
    """

    def __init__(self, conventional: nn.Module, rebalancing: nn.Module) -> None:
        super().__init__()
        self.conventional, self.rebalancing = conventional, rebalancing
        self.branch: Branch = "both"

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, ...) to (N, C', ...) of one branch, or (N, 2C', ...) of both."""
        if self.branch == "both":
            return torch.cat((self.conventional(x), self.rebalancing(x)), dim=1)
        one: Tensor = self.get_submodule(self.branch)(x)
        return one


def split_last_block(network: nn.Module, num_classes: int) -> TwoBranches:
    """Give a network two branches at its end, in place, and a linear classifier of both.

    The network ends with a stage of blocks, or a linear layer, and its classifier. The second
    branch begins with the weights of the first in a random order: they are independent, and have
    the same distribution. If the network is already trained, both branches begin with the same
    weights. The network keeps timm's contract, with twice the features.

    >>> from batchformer.lab.models.networks import resnet32
    >>> network = resnet32(10)
    >>> branches = split_last_block(network, 10)
    >>> network.num_features, network.fc, network.layer3[-1] is branches
    (128, Linear(in_features=128, out_features=10, bias=True), True)
    """
    contract: Any = network
    parts = [(name, part) for name, part in network.named_children() if list(part.parameters())]
    (name, last), (head, classifier) = ([("", network)] * 2 + parts)[-2:]
    fits = isinstance(last, (nn.Sequential, nn.Linear)) and hasattr(network, "get_classifier")
    if not fits or contract.get_classifier() is not classifier:
        raise ValueError(
            f"BBN needs two copies of a network's last block, and {type(network).__name__} does "
            "not end with a stage of blocks and its classifier; set --model to a ResNet, such as "
            "resnet32 or resnet50."
        )
    # The last block of a stage, or the layer itself.
    holder, place = (
        (last, str(len(last) - 1)) if isinstance(last, nn.Sequential) else (network, name)
    )
    block = holder.get_submodule(place)
    other = copy.deepcopy(block)
    if not _is_trained(block):
        _shuffle_weights_(other)
    branches = TwoBranches(block, other)
    setattr(holder, place, branches)
    width = 2 * feature_width(network)
    contract.num_features = contract.head_hidden_size = width
    setattr(network, head, nn.Linear(width, num_classes))
    return branches


def _is_trained(block: nn.Module) -> bool:
    """Whether its norms have seen images: random weights come with running means of zero."""
    means = (value for name, value in block.named_buffers() if name.endswith("running_mean"))
    return any(not mean.is_meta and bool(mean.any()) for mean in means)


@torch.no_grad()
def _shuffle_weights_(block: nn.Module) -> None:
    for weight in block.parameters():
        weight.copy_(weight.flatten()[torch.randperm(weight.numel())].view_as(weight))
