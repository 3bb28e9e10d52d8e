from __future__ import annotations

import pytest
import torch
from torch import nn

from batchformer.lab.models.networks import DigitsNet, digits16_net, digits_net


def test_contract() -> None:
    torch.manual_seed(0)
    net = digits_net(10).eval()
    x = torch.randn(3, 1, 8, 8)
    features = net.forward_features(x)
    assert features.shape == (3, net.num_features)
    assert net.get_classifier() is net.fc
    assert torch.equal(net.forward_head(features, pre_logits=True), features)
    assert torch.equal(net(x), net.fc(features))
    assert net(x).shape == (3, 10)


def test_every_parameter_learns() -> None:
    torch.manual_seed(0)
    net = digits_net(10)
    loss = torch.nn.functional.cross_entropy(net(torch.randn(64, 1, 8, 8)), torch.arange(64) % 10)
    loss.backward()
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name


def test_the_side_of_the_images_is_a_choice() -> None:
    net = digits16_net(10).eval()
    assert net(torch.randn(3, 1, 16, 16)).shape == (3, 10)
    with pytest.raises(RuntimeError, match="shapes"):
        net(torch.randn(3, 1, 8, 8))
    with pytest.raises(ValueError, match="at least 4 pixels"):
        DigitsNet(10, side=3)


def test_the_empty_stage_has_no_state_and_its_place_is_after_the_first_pooling() -> None:
    torch.manual_seed(0)
    net = digits_net(10).eval()
    layers = {key.split(".")[0] for key in net.state_dict()}
    assert layers == {"conv1", "bn1", "conv2", "bn2", "hidden", "fc"}
    x, seen = torch.randn(3, 1, 8, 8), []
    before = net(x)
    net.layer1.append(nn.Identity())
    net.layer1[0].register_forward_hook(lambda module, args, out: seen.append(out.shape))
    assert torch.equal(net(x), before)
    assert seen == [(3, 16, 4, 4)]
