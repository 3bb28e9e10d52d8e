"""Rows between ranks: real process groups of two and three ranks, and none at all.

Run as a script, this file is one of the ranks: it saves what it got, and the tests look at it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch import distributed as dist

from batchformer.nn import exchange
from batchformer.nn.exchange import rank as own_rank
from batchformer.nn.exchange import world_size as all_ranks

#: Rows of each rank, by the number of ranks.
SIZES = {2: ((4, 4), (3, 5), (0, 4)), 3: ((4, 4, 4), (5, 1, 3), (0, 6, 2))}


def rows_of(rank: int, sizes: tuple[int, ...]) -> Tensor:
    """Images (N, 2, 3, 3), channels last, whose values name the rank and the row."""
    first = 100 * rank + torch.arange(sizes[rank], dtype=torch.float32)
    images = first.view(-1, 1, 1, 1) + torch.linspace(0, 0.5, 18).view(2, 3, 3)
    return images.contiguous(memory_format=torch.channels_last)


def factors(rank: int, use: int, rows: int) -> Tensor:
    """What the loss of a rank multiplies the rows of all by (M, 2, 3, 3), at one of two uses."""
    draw = torch.Generator().manual_seed(10 * rank + use)
    return torch.randn(rows, 2, 3, 3, generator=draw)


def gradient(rank: int, sizes: tuple[int, ...], *, scatter: bool) -> Tensor:
    """Of this rank's rows, which are gathered twice in one step."""
    x, rows = rows_of(rank, sizes).requires_grad_(), sum(sizes)
    with patch.object(exchange, "_has_reduce_scatter", lambda x, group: scatter):
        first = (exchange.gather_rows(x) * factors(rank, 0, rows)).sum()
        second = (exchange.gather_rows(2 * x, list(sizes)) * factors(rank, 1, rows)).sum()
        (first + second).backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None
    return x.grad


def ways(ranks: int) -> tuple[bool, ...]:
    """Whether to sum by reduce-scatter: no, and yes where this version of gloo can."""
    try:
        dist.reduce_scatter(torch.zeros(1), [torch.zeros(1)] * ranks)
    except RuntimeError:
        return (False,)
    return (False, True)


def work(rank: int, ranks: int, folder: str) -> None:
    """What one rank of a group does, for every list of sizes."""
    store = f"file://{folder}/store{ranks}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=ranks)
    found: list[dict[str, Any]] = []
    for sizes in SIZES[ranks]:
        x = rows_of(rank, sizes).requires_grad_()
        numbers = torch.arange(sizes[rank]) + 100 * rank
        counts = exchange.row_counts(x)
        own = exchange.rows_of_rank(counts)
        found.append(
            {
                "place": (own_rank(), all_ranks()),
                "counts": counts,
                "own": (own.start, own.stop),
                "gathered": exchange.gather(x),
                "numbers": exchange.gather(numbers, counts),
                "rows": exchange.gather_rows(x),
                "gradients": [gradient(rank, sizes, scatter=s) for s in ways(ranks)],
                "total": exchange.total_rows(len(x), x.device),
                "summed": exchange.summed(numbers.sum()),
            }
        )
    torch.save(found, f"{folder}/{rank}of{ranks}.pt")
    dist.barrier()
    dist.destroy_process_group()


def test_rows_between_ranks(run_ranks: Callable[[str, Path, int], None], tmp_path: Path) -> None:
    """One test, since starting the ranks takes longer than all they do."""
    run_ranks(__file__, tmp_path, max(SIZES))
    for ranks, all_sizes in SIZES.items():
        found = [
            torch.load(tmp_path / f"{rank}of{ranks}.pt", weights_only=True) for rank in range(ranks)
        ]
        for sizes, *by_rank in zip(all_sizes, *found, strict=True):
            assert_all_rows_in_order(sizes, by_rank)
            assert_gradients_are_sums_over_ranks(sizes, by_rank)


def assert_all_rows_in_order(sizes: tuple[int, ...], by_rank: list[dict[str, Any]]) -> None:
    everyone = torch.cat([rows_of(rank, sizes) for rank in range(len(sizes))])
    named = [100 * rank + row for rank, size in enumerate(sizes) for row in range(size)]
    for rank, found in enumerate(by_rank):
        assert found["place"] == (rank, len(sizes)) and found["counts"] == list(sizes)
        assert found["own"] == (sum(sizes[:rank]), sum(sizes[: rank + 1]))
        assert torch.equal(found["gathered"], everyone)
        assert not found["gathered"].requires_grad
        assert found["numbers"].tolist() == named
        assert int(found["total"]) == sum(sizes) and int(found["summed"]) == sum(named)


def assert_gradients_are_sums_over_ranks(
    sizes: tuple[int, ...], by_rank: list[dict[str, Any]]
) -> None:
    everyone, count = torch.cat([rows_of(r, sizes) for r in range(len(sizes))]), sum(sizes)
    summed = sum(factors(r, 0, count) + 2 * factors(r, 1, count) for r in range(len(sizes)))
    assert isinstance(summed, Tensor)
    for found in by_rank:
        assert torch.equal(found["rows"], everyone) and found["rows"].requires_grad
        for got in found["gradients"]:
            torch.testing.assert_close(got, summed[slice(*found["own"])])


def test_one_rank_has_its_own_rows_without_a_group() -> None:
    x = torch.randn(5, 2, requires_grad=True)
    gathered = exchange.gather(x)
    assert torch.equal(gathered, x) and not gathered.requires_grad
    assert exchange.gather_rows(x) is x
    assert int(exchange.total_rows(5, x.device)) == 5
    assert exchange.row_counts(x) == [5] and exchange.rows_of_rank([5]) == slice(0, 5)


if __name__ == "__main__":
    # The same processes are a group of three and then, without the last, one of two.
    for group in sorted(SIZES, reverse=True):
        if int(sys.argv[2]) < group:
            work(int(sys.argv[2]), group, sys.argv[1])
    # gloo's threads may outlive the group, and an interpreter that ends beside them is aborted.
    os._exit(0)
