"""What is trained where only the last block is."""

from __future__ import annotations

import pytest

from batchformer.lab.models.build import build_model, train_last_block


def test_convolutions_of_the_last_block_alone() -> None:
    network = build_model("resnet18", 3)
    train_last_block(network)
    trained = {name for name, p in network.named_parameters() if p.requires_grad}
    convolutions = {name for name, p in network.named_parameters() if p.ndim == 4}
    assert trained & convolutions == {"layer4.1.conv1.weight", "layer4.1.conv2.weight"}
    others = {name for name, _ in network.named_parameters()} - convolutions
    assert others <= trained and {"bn1.weight", "fc.weight"} <= others


def test_networks_without_such_a_block_are_refused() -> None:
    with pytest.raises(ValueError, match="ResNetCifar has none"):
        train_last_block(build_model("resnet32", 3))
