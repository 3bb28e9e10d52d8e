"""The queue against a plain list; test_moco_reference.py has the momentum encoder."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from batchformer.lab.methods.momentum import KeyQueue


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
