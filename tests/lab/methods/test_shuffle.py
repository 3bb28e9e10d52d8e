"""A shuffle between ranks: real process groups of two and three ranks, and none at all.

Run as a script, this file is one of the ranks: it saves what it got, and the tests look at it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from batchformer.lab.methods.momentum import shuffle, unshuffle

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


def test_a_shuffle_between_ranks(
    run_ranks: Callable[[str, Path, int], None], tmp_path: Path
) -> None:
    """One test, since starting the ranks takes longer than all they do."""
    run_ranks(__file__, tmp_path, max(SIZES))
    for ranks, all_sizes in SIZES.items():
        found = [
            torch.load(tmp_path / f"{rank}of{ranks}.pt", weights_only=True) for rank in range(ranks)
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


if __name__ == "__main__":
    # The same processes are a group of three and then, without the last, one of two.
    for group in sorted(SIZES, reverse=True):
        if int(sys.argv[2]) < group:
            work(int(sys.argv[2]), group, sys.argv[1])
    # gloo's threads may outlive the group, and an interpreter that ends beside them is aborted.
    os._exit(0)
