"""Candidates take turns, timings are of one call, and memory counts each storage once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from torch import nn

from batchformer.lab.bench import measure
from batchformer.lab.bench.measure import (
    BenchSettings,
    GraphStopwatch,
    Stopwatch,
    processor_name,
    saved_bytes,
    time_interleaved,
)

CPU = torch.device("cpu")


def fake_timers(order: list[str], times: dict[str, list[float]]) -> dict[str, Any]:
    """Timers that note the order of their calls and return these times, one after the other."""

    def timer(name: str, values: Iterator[float]) -> Callable[[], float]:
        def run() -> float:
            order.append(name)
            return next(values)

        return run

    return {name: timer(name, iter(values)) for name, values in times.items()}


def test_turns_rotate_and_ratios_are_of_the_same_round() -> None:
    order: list[str] = []
    # The first value of each is the warm-up; then the machine becomes slower in every round.
    times = {"a": [9.0, 1, 2, 3], "b": [9.0, 2, 4, 6], "c": [9.0, 3, 3, 3]}
    found = time_interleaved(fake_timers(order, times), 3, usual=9, budget=9)
    assert "".join(order) == "abc" + "abc" + "bca" + "cab"
    b = found["b"].speed_up
    assert b.median == b.low == b.high == 0.5 and found["a"].speed_up.high == 1
    assert found["c"].ms.median == 3000 and found["c"].speed_up.median == pytest.approx(2 / 3)


def test_a_budget_ends_the_usual_rounds_but_not_the_repeats(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = iter(range(0, 1000, 10))
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(now)))
    timers = {"a": lambda: 1.0}

    def rounds(repeats: int | None, usual: int, budget: float) -> int:
        found = time_interleaved(timers, repeats, usual=usual, budget=budget)
        return len(found["a"].seconds)

    assert rounds(None, usual=20, budget=5.0) == measure.MIN_ROUNDS
    assert rounds(None, usual=5, budget=1000.0) == 5
    assert rounds(7, usual=2, budget=0.0) == 7


def test_a_candidate_that_fails_is_left_out() -> None:
    told: list[str] = []

    def broken() -> float:
        raise RuntimeError("no memory")

    def run(timers: dict[str, Callable[[], float]], **options: Any) -> list[str]:
        return list(time_interleaved(timers, 2, usual=2, budget=1, **options))

    timers: dict[str, Callable[[], float]] = {"a": lambda: 1.0, "b": broken, "c": lambda: 2.0}
    assert run(timers, failed=lambda name, error: told.append(f"{name} {error}")) == ["a", "c"]
    assert told == ["b no memory"]
    with pytest.raises(RuntimeError, match="no memory"):
        run({"b": broken, "a": lambda: 1.0}, failed=lambda *_: None)
    with pytest.raises(RuntimeError, match="no memory"):
        run(timers)


def test_short_work_is_repeated_until_it_can_be_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    now, calls = [0.0], [0]

    def work() -> None:
        calls[0] += 1
        now[0] += 0.001

    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    watch = Stopwatch(work, CPU, min_seconds=0.0095)
    assert watch() == pytest.approx(0.001) and calls == [2]
    assert watch() == pytest.approx(0.001) and calls == [12]
    long = Stopwatch(lambda: now.__setitem__(0, now[0] + 1.0), CPU)
    assert long() == 1.0 and now[0] == pytest.approx(1.012) and long.calls == 1


class FakeGraph:
    replay: Callable[[], None]


def test_a_graph_holds_several_calls_and_the_timing_is_of_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, calls, captured, replays = [0.0], [0], [0], [0]

    def work() -> None:
        calls[0] += 1
        now[0] += 0.001  # the time of the host; a replay takes a tenth

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            self.at = now[0]

        def synchronize(self) -> None: ...

        def elapsed_time(self, end: Any) -> float:
            return 1000 * float(end.at - self.at)

    def replay() -> None:
        replays[0] += 1
        now[0] += captured[0] * 0.0001

    @contextmanager
    def graph(made: FakeGraph, stream: object) -> Iterator[None]:
        before = calls[0]
        yield
        captured[0], made.replay = calls[0] - before, replay

    for name, value in {
        "Stream": MagicMock(),
        "stream": lambda _: nullcontext(),
        "current_stream": MagicMock(),
        "synchronize": lambda _: None,
        "Event": Event,
        "CUDAGraph": FakeGraph,
        "graph": graph,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    watch = GraphStopwatch(work, torch.device("cuda"), min_seconds=0.0075)
    assert watch() == pytest.approx(0.0001)
    assert captured == [8] and watch.calls == 8
    calls[0], replays[0] = 0, 0
    assert watch() == pytest.approx(0.0001) and calls == [0] and replays == [1]


def test_a_storage_counts_once_and_given_tensors_do_not_count() -> None:
    x, w = torch.randn(16, 8, requires_grad=True), torch.randn(8, 8, requires_grad=True)

    def forward() -> torch.Tensor:
        hidden = (x @ w).relu()  # saved by relu, and again as an input of the next product
        return hidden.t() @ hidden

    assert saved_bytes(forward, [x, w]) == 4 * 16 * 8
    assert saved_bytes(forward, [x]) == 4 * 16 * 8 + 4 * 8 * 8
    frozen = nn.Linear(4, 4).requires_grad_(False)
    assert saved_bytes(lambda: frozen(torch.randn(2, 4)), []) == 0


def test_the_environment_names_everything_but_the_date() -> None:
    settings = BenchSettings(CPU)
    found = settings.environment(torch.float32)
    assert list(found) == ["machine", "device", "threads", "torch", "dtype"]
    assert found["dtype"] == "float32" and found["torch"] == torch.__version__
    assert found["threads"] == str(torch.get_num_threads()) and processor_name() in found["machine"]
