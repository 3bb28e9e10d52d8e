from __future__ import annotations

import torch

from batchformer.models.digits_net import digits_net


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
