"""Candidates take turns; ratios are of the same round; graphs are timed by the call."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch

from batchformer.lab.bench import measure as timing
from batchformer.lab.bench.measure import GraphStopwatch, Stopwatch, interleaved, measured

CPU = torch.device("cpu")


def recording(order: list[str], times: dict[str, Iterator[float]]) -> dict[str, Any]:
    def timer(name: str) -> Callable[[], float]:
        def run() -> float:
            order.append(name)
            return next(times[name])

        return run

    return {name: timer(name) for name in times}


def test_turns_rotate_and_ratios_are_paired() -> None:
    order: list[str] = []
    # The first value of each is the warm-up; then a machine that is slower in every round.
    times = {"a": iter([9.0, 1, 2, 3]), "b": iter([9.0, 2, 4, 6]), "c": iter([9.0, 3, 3, 3])}
    found = interleaved(recording(order, times), 3)
    assert "".join(order) == "abc" + "abc" + "bca" + "cab"
    assert found["b"].ratio.median == found["b"].ratio.low == found["b"].ratio.high == 2
    assert found["b"].speed_up.median == 0.5 and found["a"].ratio.high == 1
    assert found["c"].ms.median == 3000 and found["c"].ratio.median == 1.5


def test_a_budget_ends_rounds_but_leaves_a_few() -> None:
    now = iter(range(0, 1000, 10))
    found = interleaved({"a": lambda: 1.0}, 20, budget=5.0, clock=lambda: float(next(now)))
    assert len(found["a"].seconds) == timing.FEWEST_ROUNDS
    assert len(measured({"a": lambda: 1.0}, 7, usual=2, budget=0.0)["a"].seconds) == 7
    assert len(measured({"a": lambda: 1.0}, None, usual=5, budget=60.0)["a"].seconds) == 5


def test_a_candidate_that_cannot_run_is_left_out() -> None:
    told: list[str] = []

    def broken() -> float:
        raise RuntimeError("no memory")

    timers: dict[str, Callable[[], float]] = {"a": lambda: 1.0, "b": broken, "c": lambda: 2.0}
    found = interleaved(timers, 2, failed=lambda name, error: told.append(f"{name} {error}"))
    assert list(found) == ["a", "c"] and told == ["b no memory"]
    with pytest.raises(RuntimeError, match="no memory"):
        interleaved({"b": broken, "a": lambda: 1.0}, 2, failed=lambda *_: None)
    with pytest.raises(RuntimeError, match="no memory"):
        interleaved(timers, 2)


def test_short_work_is_repeated_until_it_can_be_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    now, calls = [0.0], [0]

    def work() -> None:
        calls[0] += 1
        now[0] += 0.001

    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    watch = Stopwatch(work, CPU, shortest=0.0095)
    assert watch() == pytest.approx(0.001) and calls == [2]
    assert watch() == pytest.approx(0.001) and calls == [12]
    long = Stopwatch(lambda: now.__setitem__(0, now[0] + 1.0), CPU)
    assert long() == 1.0 and now[0] == pytest.approx(1.012) and long.calls == 1


class FakeGraph:
    replay: Callable[[], None]


def test_a_graph_holds_several_calls_and_is_timed_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    now, calls, recorded, replays = [0.0], [0], [0], [0]

    def work() -> None:
        calls[0] += 1
        now[0] += 0.001  # what the host takes; a replay takes a tenth

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            self.at = now[0]

        def synchronize(self) -> None: ...

        def elapsed_time(self, end: Any) -> float:
            return 1000 * float(end.at - self.at)

    class Stream:
        def __init__(self, device: torch.device) -> None: ...

        def wait_stream(self, other: Any) -> None: ...

    def replay() -> None:
        replays[0] += 1
        now[0] += recorded[0] * 0.0001

    @contextmanager
    def graph(made: FakeGraph, stream: Stream) -> Iterator[None]:
        before = calls[0]
        yield
        recorded[0], made.replay = calls[0] - before, replay

    for name, value in {
        "Stream": Stream,
        "stream": lambda _: nullcontext(),
        "current_stream": Stream,
        "synchronize": lambda _: None,
        "Event": Event,
        "CUDAGraph": FakeGraph,
        "graph": graph,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    watch = GraphStopwatch(work, torch.device("cuda"), shortest=0.0075)
    assert watch() == pytest.approx(0.0001)
    assert recorded == [8] and watch.calls == 8
    calls[0], replays[0] = 0, 0
    assert watch() == pytest.approx(0.0001) and calls == [0] and replays == [1]
