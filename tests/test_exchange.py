"""Rows between ranks: real process groups of two and three ranks, and none at all.

Run as a script, this file is one of the ranks: it saves what it got, and the tests look at it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from batchformer import BatchFormer, exchange

#: Rows of each rank, by the number of ranks.
SIZES = {2: ((4, 4), (3, 5), (0, 4)), 3: ((4, 4, 4), (5, 1, 3), (0, 6, 2))}
SEEDS = (1, 2)


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
    kept = exchange._scatters
    exchange._scatters = lambda x: scatter
    try:
        first = (exchange.gather_rows(x) * factors(rank, 0, rows)).sum()
        second = (exchange.gather_rows(2 * x, list(sizes)) * factors(rank, 1, rows)).sum()
        (first + second).backward()
    finally:
        exchange._scatters = kept
    assert x.grad is not None
    return x.grad


def ways(ranks: int) -> tuple[bool, ...]:
    """Whether to sum by reduce-scatter: no, and yes where this version of gloo can."""
    try:
        dist.reduce_scatter(torch.zeros(1), [torch.zeros(1)] * ranks)
    except RuntimeError:
        return (False,)
    return (False, True)


@contextmanager
def counted() -> Iterator[dict[str, int]]:
    """Bytes that pass through torch's collectives, of and for other ranks."""
    seen = {"sent": 0, "received": 0}
    kept = dist.all_gather, dist.all_reduce, dist.reduce_scatter

    def size(*tensors: Tensor) -> int:
        return sum(t.numel() * t.element_size() for t in tensors)

    def all_gather(found: list[Tensor], own: Tensor) -> None:
        kept[0](found, own)
        seen["sent"] += size(own)
        seen["received"] += size(*found) - size(own)

    def all_reduce(x: Tensor) -> None:
        kept[1](x)
        seen["sent"] += size(x)
        seen["received"] += size(x)

    def reduce_scatter(own: Tensor, parts: list[Tensor]) -> None:
        kept[2](own, parts)
        seen["sent"] += size(*parts) - size(own)
        seen["received"] += size(own)

    dist.all_gather, dist.all_reduce, dist.reduce_scatter = all_gather, all_reduce, reduce_scatter
    try:
        yield seen
    finally:
        dist.all_gather, dist.all_reduce, dist.reduce_scatter = kept


def step_bytes(rank: int, sizes: tuple[int, ...], *, scatter: bool, **how: Any) -> tuple[int, ...]:
    """Counted in one training step of two layers, on tokens (N, 3, 8)."""
    module = BatchFormer(8, layers=2, exchange=True, **how)
    x = torch.randn(sizes[rank], 3, 8, dtype=how.get("dtype"))
    kept = exchange._scatters
    exchange._scatters = lambda x: scatter
    try:
        with counted() as seen:
            module(x).sum().backward()
    finally:
        exchange._scatters = kept
    return seen["sent"], seen["received"]


def work(rank: int, ranks: int, folder: str) -> None:
    """What one rank of a group does, for every list of sizes."""
    store = f"file://{folder}/store{ranks}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=ranks)
    found: list[dict[str, Any]] = []
    for sizes in SIZES[ranks]:
        x = rows_of(rank, sizes).requires_grad_()
        numbers = torch.arange(sizes[rank]) + 100 * rank
        shuffles = [exchange.shuffle(x, seed) for seed in SEEDS]
        counts = exchange.row_counts(x)
        own = exchange.own_rows(counts)
        found.append(
            {
                "place": (exchange.rank(), exchange.ranks()),
                "counts": counts,
                "own": (own.start, own.stop),
                "gathered": exchange.gather(x),
                "numbers": exchange.gather(numbers, counts),
                "shuffled": [rows for rows, _ in shuffles],
                # A head works on the shuffled rows, whose outputs have another shape.
                "undone": [
                    exchange.unshuffle(rows.flatten(1)[:, :5] * 2, order)
                    for rows, order in shuffles
                ],
                "rows": exchange.gather_rows(x),
                "ways": ways(ranks),
                "gradients": [gradient(rank, sizes, scatter=s) for s in ways(ranks)],
                "bytes": [
                    step_bytes(rank, sizes, scatter=scatter, dtype=dtype)
                    for scatter in ways(ranks)
                    for dtype in (torch.float32, torch.float64)
                ],
                "bytes of self": step_bytes(rank, sizes, scatter=False, attend="self"),
                "total": exchange.total_rows(len(x), x.device),
            }
        )
    torch.save(found, f"{folder}/{rank}of{ranks}.pt")
    dist.barrier()
    dist.destroy_process_group()


def test_rows_between_ranks(tmp_path: Path) -> None:
    """One test, since starting the ranks takes longer than all they do."""
    command = [sys.executable, __file__, str(tmp_path)]
    started = [
        subprocess.Popen([*command, str(rank)], stderr=subprocess.PIPE, text=True)
        for rank in range(max(SIZES))
    ]
    errors = [process.communicate(timeout=60)[1] for process in started]
    assert not any(process.returncode for process in started), "\n".join(errors)
    for ranks, all_sizes in SIZES.items():
        found = [
            torch.load(tmp_path / f"{rank}of{ranks}.pt", weights_only=True) for rank in range(ranks)
        ]
        for sizes, *by_rank in zip(all_sizes, *found, strict=True):
            assert_all_rows_in_order(sizes, by_rank)
            assert_every_row_is_dealt_once_and_to_other_ranks(sizes, by_rank)
            assert_undone_exactly(sizes, by_rank)
            assert_gradients_are_sums_over_ranks(sizes, by_rank)
            assert_traffic_is_as_stated(sizes, by_rank)


def assert_all_rows_in_order(sizes: tuple[int, ...], by_rank: list[dict[str, Any]]) -> None:
    everyone = torch.cat([rows_of(rank, sizes) for rank in range(len(sizes))])
    named = [100 * rank + row for rank, size in enumerate(sizes) for row in range(size)]
    for rank, found in enumerate(by_rank):
        assert found["place"] == (rank, len(sizes)) and found["counts"] == list(sizes)
        assert found["own"] == (sum(sizes[:rank]), sum(sizes[: rank + 1]))
        assert torch.equal(found["gathered"], everyone)
        assert not found["gathered"].requires_grad
        assert found["numbers"].tolist() == named


def assert_every_row_is_dealt_once_and_to_other_ranks(
    sizes: tuple[int, ...], by_rank: list[dict[str, Any]]
) -> None:
    everyone = torch.cat([rows_of(rank, sizes) for rank in range(len(sizes))])
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
        expected = rows_of(rank, sizes).flatten(1)[:, :5] * 2
        assert all(torch.equal(rows, expected) for rows in found["undone"])


def assert_gradients_are_sums_over_ranks(
    sizes: tuple[int, ...], by_rank: list[dict[str, Any]]
) -> None:
    everyone, count = torch.cat([rows_of(r, sizes) for r in range(len(sizes))]), sum(sizes)
    summed = sum(factors(r, 0, count) + 2 * factors(r, 1, count) for r in range(len(sizes)))
    assert isinstance(summed, Tensor)
    for found in by_rank:
        assert torch.equal(found["rows"], everyone) and found["rows"].requires_grad
        assert int(found["total"]) == count
        for got in found["gradients"]:
            torch.testing.assert_close(got, summed[slice(*found["own"])])


def assert_traffic_is_as_stated(sizes: tuple[int, ...], by_rank: list[dict[str, Any]]) -> None:
    for found in by_rank:
        assert found["bytes"] == [
            tuple(exchange.traffic(sizes, 8, 2, width, positions=3, scatter=scatter))
            for scatter in found["ways"]
            for width in (4, 8)
        ]
        assert found["bytes of self"] == (24, 24 * (len(sizes) - 1))


def test_one_rank_has_its_own_rows_without_a_group() -> None:
    assert (exchange.rank(), exchange.ranks()) == (0, 1)
    x = torch.randn(5, 2, requires_grad=True)
    gathered = exchange.gather(x)
    assert torch.equal(gathered, x) and not gathered.requires_grad
    assert exchange.gather_rows(x) is x and exchange.traffic([5], 2) == (0, 0)
    assert int(exchange.total_rows(5, x.device)) == 5
    met = exchange.meet(5, 1, x.device, draw=False)
    assert met.counts == [5] and met.own == slice(0, 5) and met.total == 5
    assert exchange.row_counts(x) == [5] and exchange.own_rows([5]) == slice(0, 5)
    rows, order = exchange.shuffle(x, 3)
    assert rows is x and order is None and exchange.unshuffle(rows, order) is rows


if __name__ == "__main__":
    # The same processes are a group of three and then, without the last, one of two.
    for group in sorted(SIZES, reverse=True):
        if int(sys.argv[2]) < group:
            work(int(sys.argv[2]), group, sys.argv[1])
    # gloo's threads may outlive the group, and an interpreter that ends beside them is aborted.
    os._exit(0)
