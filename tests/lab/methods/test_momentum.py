"""The slower encoder against a plain loop."""

from __future__ import annotations

import torch
from torch import nn

from batchformer.lab.methods.momentum import follow, follower


def test_parameters_follow_and_statistics_do_not() -> None:
    leader = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    slow = follower(leader)
    assert all(not p.requires_grad for p in slow.parameters())
    assert all(p.requires_grad for p in leader.parameters())
    expected = [p.detach().double().clone() for p in leader.parameters()]
    for step in range(5):
        torch.manual_seed(step)
        with torch.no_grad():
            for parameter in leader.parameters():
                parameter.add_(torch.randn_like(parameter))
        leader(torch.randn(8, 3))  # moves the leader's statistics
        follow(slow, leader, 0.9)
        expected = [0.9 * e + 0.1 * p for e, p in zip(expected, leader.parameters(), strict=True)]
    for own, wanted in zip(slow.parameters(), expected, strict=True):
        torch.testing.assert_close(own.double(), wanted, rtol=1e-5, atol=1e-6)
    assert torch.equal(slow[1].running_mean, torch.zeros(2))
    assert not torch.equal(leader[1].running_mean, torch.zeros(2))


def test_the_ends() -> None:
    leader = nn.Linear(2, 2)
    slow = follower(leader)
    kept = slow.weight.clone()
    nn.init.ones_(leader.weight)
    follow(slow, leader, 1.0)
    assert torch.equal(slow.weight, kept)
    follow(slow, leader, 0.0)
    assert torch.equal(slow.weight, leader.weight)
