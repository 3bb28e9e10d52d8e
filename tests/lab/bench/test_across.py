"""Ranks are timed together, and bytes are those that the sizes ask for."""

from __future__ import annotations

import pytest
import torch

from batchformer.lab.bench import exchange as across
from batchformer.lab.bench.exchange import Case, cases, measure
from batchformer.lab.bench.measure import BenchSettings, Spread

ONCE = BenchSettings(torch.device("cpu"), repeats=2)


def test_two_ranks_are_timed_and_their_bytes_stated() -> None:
    table = measure(ONCE, [Case(2, 3, 8)])
    (row,) = table.rows
    assert row[:3] == (2, 3, 8)
    for spread in row[3:6]:
        assert isinstance(spread, Spread) and spread.rounds == 2 and spread.median > 0
    sent, received = row[6:]
    # Keys and values of three rows, their gradients for all six, and three numbers as a greeting.
    assert sent == pytest.approx((3 * 8 + (3 + 6) * 2 * 8 * 4) / 1e6)
    assert received == pytest.approx((3 * 8 + (3 + 6) * 2 * 8 * 4) / 1e6)


def test_a_rank_that_fails_costs_its_row_and_says_why() -> None:
    table = measure(ONCE, [Case(2, 3, 7)])
    assert not table.rows
    (said,) = [note for note in table.notes if "2 ranks with 3 samples" in note]
    assert "4 heads do not divide dim=7" in said


def test_one_gpu_is_not_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(across.torch.cuda, "device_count", lambda: 1)
    with pytest.raises(RuntimeError, match="there is one"):
        measure(BenchSettings(torch.device("cuda")))
    assert {case.ranks for case in cases(4)} == {4}
