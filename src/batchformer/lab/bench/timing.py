"""Candidates timed in turn, so that what else the machine does meets all of them alike."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from batchformer.lab.bench.spread import Spread, spread_of

Work = Callable[[], object]
#: Does the work, once or several times, and says how many seconds one time took.
Timer = Callable[[], float]

#: A timing shorter than this is mostly the clock and the launch.
SHORTEST = 0.005
#: After a call as long as this, a second one for warming up would be time lost.
LONG = 0.2
#: Rounds that a budget of time never cuts.
FEWEST_ROUNDS = 3
#: Calls in a row, and calls in one CUDA graph, at the most.
MOST_CALLS, MOST_RECORDED = 200, 20
#: Calls before a recording: libraries choose their kernels, Triton compiles its own.
CALLS_BEFORE_RECORDING = 3


@dataclass(frozen=True)
class Timing:
    """Seconds of one call by round, beside those of the first candidate in the same rounds."""

    seconds: tuple[float, ...]
    first: tuple[float, ...]

    @property
    def ms(self) -> Spread:
        """Milliseconds of one call."""
        return spread_of([1000 * s for s in self.seconds])

    @property
    def ratio(self) -> Spread:
        """Time over the first candidate's, round by round."""
        return spread_of([own / first for own, first in self._pairs()])

    @property
    def speed_up(self) -> Spread:
        """The first candidate's time over this one's, round by round."""
        return spread_of([first / own for own, first in self._pairs()])

    def _pairs(self) -> list[tuple[float, float]]:
        return list(zip(self.seconds, self.first, strict=True))


def interleaved(
    timers: Mapping[str, Timer],
    rounds: int,
    *,
    budget: float | None = None,
    failed: Callable[[str, Exception], None] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Timing]:
    """Time every candidate once a round, A B C, B C A, C A B, ..., after a round of warm-up.

    Args:
        timers: by name; ratios are to the first.
        rounds: how many.
        budget: seconds after which no further round begins, once there are a few.
        failed: told of a candidate that raises while it warms up, which is then left out; the
            first candidate, without which there are no ratios, raises.
        clock: seconds.
    """
    ready: dict[str, Timer] = {}
    for name, timer in timers.items():
        try:
            timer()
        except Exception as error:
            if failed is None or not ready:
                raise
            failed(name, error)
        else:
            ready[name] = timer
    names, seconds = list(ready), {name: list[float]() for name in ready}
    started = clock()
    for number in range(rounds):
        if budget is not None and number >= FEWEST_ROUNDS and clock() - started > budget:
            break
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            seconds[name].append(ready[name]())
    first = tuple(seconds[names[0]])
    return {name: Timing(tuple(found), first) for name, found in seconds.items()}


def measured(
    timers: Mapping[str, Timer],
    repeats: int | None,
    *,
    usual: int,
    budget: float,
    failed: Callable[[str, Exception], None] | None = None,
) -> dict[str, Timing]:
    """:func:`interleaved` for exactly ``repeats`` rounds, or else the usual ones in the budget."""
    if repeats is not None:
        return interleaved(timers, repeats, failed=failed)
    return interleaved(timers, usual, budget=budget, failed=failed)


class Stopwatch:
    """Seconds of one call, over as many calls in a row as make a timing long enough.

    On a CUDA device these are events around the row, with the host running ahead as it does in
    training; elsewhere the clock of the host. The first call warms up and finds the number.

    Args:
        work: what is timed.
        device: where it works.
        shortest: seconds that a timing should take.
        calls: in a row; None finds the number.
    """

    def __init__(
        self,
        work: Work,
        device: torch.device,
        shortest: float = SHORTEST,
        calls: int | None = None,
    ) -> None:
        self.work, self.device, self.shortest, self.calls = work, device, shortest, calls
        self.ready = False

    def __call__(self) -> float:
        if not self.ready:
            first = self.prepare()
            self.ready = True
            return first
        return self._seconds(self.calls or 1)

    def prepare(self) -> float:
        """Warm up, and find how many calls to make in a row; seconds of one call."""
        first = self._seconds(self.calls or 1)
        if first < LONG:  # else it was long enough to be warm at its end
            first = self._seconds(self.calls or 1)
        if self.calls is None:
            enough = math.ceil(self.shortest / max(first, 1e-9))
            self.calls = min(max(enough, 1), MOST_CALLS)
        return first

    def row(self, calls: int) -> None:
        """So many calls."""
        for _ in range(calls):
            self.work()

    def _seconds(self, calls: int) -> float:
        synchronize(self.device)
        if self.device.type == "cuda":
            begin, end = _event(), _event()
            begin.record()
            self.row(calls)
            end.record()
            end.synchronize()
            return float(begin.elapsed_time(end)) / 1000 / calls
        started = time.perf_counter()
        self.row(calls)
        synchronize(self.device)
        return (time.perf_counter() - started) / calls


class GraphStopwatch(Stopwatch):
    """The same calls recorded as one CUDA graph: no host in between."""

    graph: Any = None

    def prepare(self) -> float:
        side = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(side):
            for _ in range(CALLS_BEFORE_RECORDING):
                self.work()
        torch.cuda.current_stream(self.device).wait_stream(side)
        super().prepare()
        self.calls = min(self.calls or 1, MOST_RECORDED)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side):
            super().row(self.calls)
        self.graph = graph
        graph.replay()
        return self._seconds(self.calls)

    def row(self, calls: int) -> None:
        if self.graph is None:
            super().row(calls)
        else:
            self.graph.replay()


def synchronize(device: torch.device) -> None:
    """Wait until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
