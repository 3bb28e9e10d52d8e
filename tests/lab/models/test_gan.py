"""Generator and critic: sizes, initial weights, and what they compute."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from batchformer.lab.models.generator import Critic, Generator, with_small_weights


def test_initial_weights() -> None:
    torch.manual_seed(0)
    nets = Generator(1024, 1024, 4096, 2048), Critic(2048, 1024, 4096)
    shapes = [[tuple(p.shape) for p in net.parameters()] for net in nets]
    assert shapes[0] == [(4096, 2048), (4096,), (2048, 4096), (2048,)]
    assert shapes[1] == [(4096, 3072), (4096,), (1, 4096), (1,)]
    for net in nets:
        for parameter in net.parameters():
            if parameter.ndim == 1:
                assert not parameter.any()
            else:
                assert parameter.std().item() == pytest.approx(0.02, rel=0.05)
                assert abs(parameter.mean().item()) < 0.002
    without = with_small_weights(nn.Sequential(nn.Linear(300, 300, bias=False), nn.ReLU()))
    assert next(without.parameters()).std().item() == pytest.approx(0.02, rel=0.05)


def test_the_generator_by_hand() -> None:
    net = Generator(attributes=3, noise=2, hidden=7, features=5).double()
    noise, attributes = torch.randn(4, 2).double(), torch.randn(4, 3).double()
    (w1, b1), (w2, b2) = ((m.weight, m.bias) for m in (net.hidden, net.output))
    hidden = noise @ w1[:, :2].T + attributes @ w1[:, 2:].T + b1
    expected = (torch.where(hidden > 0, hidden, 0.2 * hidden) @ w2.T + b2).clamp(min=0)
    torch.testing.assert_close(net(noise, attributes), expected)


def test_the_critic_by_hand() -> None:
    net = Critic(features=5, attributes=3, hidden=7).double()
    x, attributes = torch.randn(4, 5).double(), torch.randn(4, 3).double()
    hidden = x @ net.hidden.weight[:, :5].T + attributes @ net.hidden.weight[:, 5:].T
    expected = torch.where(hidden > 0, hidden, 0.2 * hidden) @ net.output.weight[0]
    torch.testing.assert_close(net(x, attributes), expected)
