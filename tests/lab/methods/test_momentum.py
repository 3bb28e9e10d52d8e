"""The momentum encoder and the queue against plain loops."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from batchformer.lab.methods.momentum import KeyQueue, frozen_copy, update_average_


def test_parameters_follow_and_statistics_do_not() -> None:
    leader = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    slow = frozen_copy(leader)
    assert all(not p.requires_grad for p in slow.parameters())
    assert all(p.requires_grad for p in leader.parameters())
    expected = [p.detach().double().clone() for p in leader.parameters()]
    for step in range(5):
        torch.manual_seed(step)
        with torch.no_grad():
            for parameter in leader.parameters():
                parameter.add_(torch.randn_like(parameter))
        leader(torch.randn(8, 3))  # moves the leader's statistics
        update_average_(slow, leader, 0.9)
        expected = [0.9 * e + 0.1 * p for e, p in zip(expected, leader.parameters(), strict=True)]
    for own, wanted in zip(slow.parameters(), expected, strict=True):
        torch.testing.assert_close(own.double(), wanted, rtol=1e-5, atol=1e-6)
    assert torch.equal(slow[1].running_mean, torch.zeros(2))
    assert not torch.equal(leader[1].running_mean, torch.zeros(2))


@settings(max_examples=60)
@given(size=st.integers(1, 12), pushes=st.lists(st.integers(1, 20), max_size=6))
def test_it_holds_the_newest_and_says_which_are_real(size: int, pushes: list[int]) -> None:
    queue, seen = KeyQueue(size, 2), 0
    expected: list[int] = []
    for rows in pushes:
        numbers = torch.arange(seen, seen + rows)
        queue.push(torch.stack((numbers, -numbers), 1).float(), numbers)
        expected += numbers.tolist()
        seen += rows
    newest = expected[-size:]
    held = queue.labels[queue.valid].tolist()
    assert sorted(held) == newest
    assert int(queue.valid.sum()) == len(newest)
    assert queue.keys[queue.valid].tolist() == [[float(n), float(-n)] for n in held]


def test_places_are_those_of_a_ring_written_one_by_one() -> None:
    queue = KeyQueue(5, 1)
    ring, place = [0] * 5, 0
    for rows in (2, 2, 3, 5, 1):
        numbers = torch.randint(1, 100, (rows,), generator=torch.Generator().manual_seed(rows))
        queue.push(numbers[:, None].float(), numbers)
        for number in numbers.tolist():
            ring[place] = number
            place = (place + 1) % 5
        assert queue.labels.tolist() == ring and int(queue.position) == place
        assert queue.keys.flatten().tolist() == [float(n) for n in ring]
