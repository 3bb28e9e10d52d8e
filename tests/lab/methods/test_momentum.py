"""The momentum encoder and the queue against plain loops, and the shuffle between real ranks.

The shuffle of several ranks is tested in test_ranks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch import distributed as dist

from batchformer.lab.methods.momentum import (
    KeyQueue,
    frozen_copy,
    shuffle,
    unshuffle,
    update_average_,
)


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


def test_the_ends() -> None:
    leader = nn.Linear(2, 2)
    slow = frozen_copy(leader)
    kept = slow.weight.clone()
    nn.init.ones_(leader.weight)
    update_average_(slow, leader, 1.0)
    assert torch.equal(slow.weight, kept)
    update_average_(slow, leader, 0.0)
    assert torch.equal(slow.weight, leader.weight)


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


#: Rows of each rank, by the number of ranks.
SIZES = {2: ((4, 4), (3, 5), (0, 4)), 3: ((4, 4, 4), (5, 1, 3), (0, 6, 2))}
SEEDS = (1, 2)


def images_of(rank: int, sizes: tuple[int, ...]) -> Tensor:
    """Images (N, 2, 3, 3), channels last, whose values name the rank and the row."""
    named = 100 * rank + torch.arange(float(sizes[rank])).view(-1, 1, 1, 1)
    pixels = torch.linspace(0, 0.5, 18).view(2, 3, 3)
    return (named + pixels).contiguous(memory_format=torch.channels_last)


def head(images: Tensor) -> Tensor:
    """What is made of the shuffled rows has another shape."""
    return images.flatten(1)[:, :5] * 2


def work(rank: int, ranks: int, folder: str) -> None:
    """What one rank of a group does, for every list of sizes."""
    store = f"file://{folder}/store{ranks}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=ranks)
    found: list[dict[str, Any]] = []
    for sizes in SIZES[ranks]:
        x = images_of(rank, sizes).requires_grad_()
        shuffles = [shuffle(x, seed) for seed in SEEDS]
        undone = [unshuffle(head(rows), shuffled) for rows, shuffled in shuffles]
        found.append({"shuffled": [rows for rows, _ in shuffles], "undone": undone})
    torch.save(found, f"{folder}/{rank}of{ranks}.pt")
    dist.barrier()
    dist.destroy_process_group()


def assert_ranks(folder: Path) -> None:
    """Check what :func:`work` left."""
    for ranks, all_sizes in SIZES.items():
        found = [
            torch.load(folder / f"{rank}of{ranks}.pt", weights_only=True) for rank in range(ranks)
        ]
        for sizes, *by_rank in zip(all_sizes, *found, strict=True):
            assert_every_row_is_dealt_once_and_to_other_ranks(sizes, by_rank)
            assert_undone_exactly(sizes, by_rank)


def assert_every_row_is_dealt_once_and_to_other_ranks(
    sizes: tuple[int, ...], by_rank: list[dict[str, Any]]
) -> None:
    everyone = torch.cat([images_of(rank, sizes) for rank in range(len(sizes))])
    orders = []
    for number in range(len(SEEDS)):
        dealt = [found["shuffled"][number] for found in by_rank]
        assert [len(rows) for rows in dealt] == list(sizes)
        for rows in dealt:
            assert rows.is_contiguous(memory_format=torch.channels_last)
            assert not rows.requires_grad
        first = torch.cat(dealt)[:, 0, 0, 0]
        assert torch.equal(first.sort().values, everyone[:, 0, 0, 0])
        orders.append(first)
        if min(sizes) > 1:
            foreign = [(rows[:, 0, 0, 0] // 100 != r).any() for r, rows in enumerate(dealt)]
            assert all(foreign), "every rank has rows of another"
    assert not torch.equal(*orders), "another seed is another order"


def assert_undone_exactly(sizes: tuple[int, ...], by_rank: list[dict[str, Any]]) -> None:
    for rank, found in enumerate(by_rank):
        expected = head(images_of(rank, sizes))
        assert all(torch.equal(rows, expected) for rows in found["undone"])


def test_one_rank_keeps_its_rows_in_order() -> None:
    x = torch.randn(5, 2, requires_grad=True)
    rows, shuffled = shuffle(x, 3)
    assert rows is x and shuffled is None and unshuffle(rows, shuffled) is rows
