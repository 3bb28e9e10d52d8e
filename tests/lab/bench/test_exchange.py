"""Ranks are timed together, and the bytes are those that collectives really get.

Run as a script, this file is one of two or three ranks: it saves what it counted, for the tests.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor
from torch import distributed as dist

from batchformer import BatchFormer
from batchformer.lab.bench import exchange as bench
from batchformer.lab.bench.exchange import Case, cases, measure, time_ranks, traffic
from batchformer.lab.bench.measure import BenchSettings
from batchformer.lab.bench.table import Spread
from batchformer.nn import exchange

ONCE = BenchSettings(torch.device("cpu"), repeats=2)
#: Rows of each rank, by the number of ranks.
SIZES = {2: ((4, 4), (3, 5), (0, 4)), 3: ((4, 4, 4), (5, 1, 3), (0, 6, 2))}


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

    def all_gather(found: list[Tensor], own: Tensor, group: object) -> None:
        kept[0](found, own)
        seen["sent"] += size(own)
        seen["received"] += size(*found) - size(own)

    def all_reduce(x: Tensor, group: object) -> None:
        kept[1](x)
        seen["sent"] += size(x)
        seen["received"] += size(x)

    def reduce_scatter(own: Tensor, parts: list[Tensor], group: object) -> None:
        kept[2](own, parts)
        seen["sent"] += size(*parts) - size(own)
        seen["received"] += size(own)

    with patch.multiple(
        dist, all_gather=all_gather, all_reduce=all_reduce, reduce_scatter=reduce_scatter
    ):
        yield seen


def step_bytes(rank: int, sizes: tuple[int, ...], *, scatter: bool, **how: Any) -> tuple[int, ...]:
    """Counted in one training step of two layers, on tokens (N, 3, 8)."""
    module = BatchFormer(8, layers=2, exchange=True, **how)
    x = torch.randn(sizes[rank], 3, 8, dtype=how.get("dtype"))
    with patch.object(exchange, "_has_reduce_scatter", lambda x, group: scatter), counted() as seen:
        module(x).sum().backward()
    return seen["sent"], seen["received"]


def work(rank: int, ranks: int, folder: str) -> None:
    """What one rank of a group does, for every list of sizes."""
    store = f"file://{folder}/store{ranks}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=ranks)
    found: list[dict[str, Any]] = []
    for sizes in SIZES[ranks]:
        found.append(
            {
                "ways": ways(ranks),
                "batch": [
                    step_bytes(rank, sizes, scatter=scatter, dtype=dtype)
                    for scatter in ways(ranks)
                    for dtype in (torch.float32, torch.float64)
                ],
                "self": step_bytes(rank, sizes, scatter=False, attend="self"),
            }
        )
    torch.save(found, f"{folder}/{rank}of{ranks}.pt")
    dist.barrier()
    dist.destroy_process_group()


def test_ranks_hand_over_as_much_as_is_stated(
    run_ranks: Callable[[str, Path, int], None], tmp_path: Path
) -> None:
    """One test, since starting the ranks takes longer than all they do."""
    run_ranks(__file__, tmp_path, max(SIZES))
    for ranks, all_sizes in SIZES.items():
        for rank in range(ranks):
            by_sizes = torch.load(tmp_path / f"{rank}of{ranks}.pt", weights_only=True)
            for sizes, found in zip(all_sizes, by_sizes, strict=True):
                assert found["batch"] == [
                    tuple(traffic(sizes, 8, 2, width, positions=3, scatter=scatter))
                    for scatter in found["ways"]
                    for width in (4, 8)
                ]
                assert found["self"] == (24, 24 * (ranks - 1)), "numbers of rows alone"


def test_one_rank_hands_over_nothing() -> None:
    assert traffic([5], 2) == (0, 0)


def test_ranks_are_timed() -> None:
    found = time_ranks(Case(2, 3, 8), rounds=2)
    assert found.keys() == {"alone", "exchange"}
    assert all(len(seconds) == 2 and min(seconds) > 0 for seconds in found.values())


@pytest.mark.parametrize(
    ("ends", "words"),
    [
        ("echo more >&2; echo no heads >&2; exit 1", "a rank failed: no heads"),
        ("kill -9 $$", "a rank failed: status -9"),
        ("exec sleep 60", "the ranks did not end within 2 seconds"),
    ],
)
def test_a_rank_that_fails_says_why_and_the_others_do_not_wait(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ends: str, words: str
) -> None:
    """The second of two ranks ends so; the first waits for it."""
    broken = tmp_path / "python"
    last = 'case "$*" in *\'"rank": 1\'*) ' + ends + ";; esac"
    broken.write_text(f"#!/bin/sh\n{last}\nexec sleep 60\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(broken))
    monkeypatch.setattr(bench, "TIMEOUT_S", 2)
    with pytest.raises(RuntimeError, match=f"^{words}$"):
        time_ranks(Case(2, 3, 7), rounds=2)


def test_a_case_that_fails_costs_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def timed(case: Case, rounds: int, on_gpu: bool) -> dict[str, list[float]]:
        if case.dim == 7:
            raise RuntimeError("no heads")
        ms = 0.001 * case.rows
        return {"alone": [ms] * rounds, "exchange": [2 * ms] * rounds}

    monkeypatch.setattr(bench, "time_ranks", timed)
    table = measure(ONCE, [Case(2, 3, 8), Case(1, 3, 7)])
    (row,) = table.rows
    # One process has the samples of both.
    assert row[:6] == (2, 3, 8, *(Spread(ms, ms, ms, 2) for ms in (3.0, 6.0, 6.0)))
    sent, received = row[6:]
    # Keys and values of three rows, their gradients for all six, and a header of three numbers.
    assert sent == received == pytest.approx((3 * 8 + (3 + 6) * 2 * 8 * 4) / 1e6)
    (failure,) = [note for note in table.notes if "1 ranks with 3 samples" in note]
    assert "no heads" in failure


def test_one_gpu_is_not_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(RuntimeError, match="there is one"):
        measure(BenchSettings(torch.device("cuda")))
    assert {case.ranks for case in cases(4)} == {4}


if __name__ == "__main__":
    # The same processes are a group of three and then, without the last, one of two.
    for group in sorted(SIZES, reverse=True):
        if int(sys.argv[2]) < group:
            work(int(sys.argv[2]), group, sys.argv[1])
    # gloo's threads may outlive the group, and an interpreter that ends beside them is aborted.
    os._exit(0)
