"""The ring of keys against a list."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from batchformer.lab.methods.momentum import KeyQueue


@settings(max_examples=60, deadline=None)
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


def test_nothing_is_replaced_so_that_a_recording_goes_on() -> None:
    queue = KeyQueue(4, 1)
    before = {name: buffer.data_ptr() for name, buffer in queue.named_buffers()}
    queue.push(torch.ones(3, 1, requires_grad=True), torch.ones(3, dtype=torch.int64))
    assert {name: buffer.data_ptr() for name, buffer in queue.named_buffers()} == before
    assert not queue.keys.requires_grad and set(queue.state_dict()) == set(before)
