"""Runs advance together, an update of each in a round."""

from __future__ import annotations

import pytest
import torch

from batchformer.lab.bench import side_by_side
from batchformer.lab.bench.measure import BenchSettings, Spread
from batchformer.lab.bench.side_by_side import _advance, _slice, compare, measure
from batchformer.lab.engine.interleave import Training
from batchformer.lab.engine.interrupt import StopRequest
from batchformer.lab.engine.loop import Evaluation

CPU = torch.device("cpu")


def counting(seen: list[str], name: str) -> Training:
    while True:
        seen.append(name)
        yield
    return Evaluation({})


def test_runs_take_turns_and_go_on_where_they_were() -> None:
    seen: list[str] = []
    runs = [counting(seen, name) for name in "abc"]
    _advance(runs[:2], 2, CPU)
    _advance(runs, 1, CPU)
    assert "".join(seen) == "abab" + "abc"


def test_a_signal_ends_a_slice() -> None:
    request = StopRequest()
    part = _slice(counting([], "a"), 5, request)
    next(part)
    request.signal_number = 2
    with pytest.raises(KeyboardInterrupt):
        next(part)


def test_a_small_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_by_side, "WARM_UP", 0)
    table = compare(BenchSettings(CPU, repeats=1), (1, 2), size=2, updates=2)
    one, two = table.rows
    assert one[0] == 1 and two[0] == 2 and one[2] is None
    assert isinstance(one[1], Spread) and isinstance(two[1], Spread)
    gain = 2 * one[1].median / two[1].median
    assert isinstance(two[2], Spread) and two[2].median == pytest.approx(gain)


def test_without_a_gpu_it_says_so() -> None:
    with pytest.raises(RuntimeError, match="side_by_side needs a CUDA device"):
        measure(BenchSettings(CPU))
