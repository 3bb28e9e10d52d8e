"""How everything is measured: settings, timing by turns, and memory."""

from __future__ import annotations

import gc
import math
import os
import platform
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from batchformer.lab.bench.table import Spread

Work = Callable[[], object]
#: Does some work once or several times, and returns the seconds of one time.
Timer = Callable[[], float]

#: Seconds a timing should take: a shorter one measures mostly the clock and the kernel launch.
MIN_SECONDS = 0.005
LONG_CALL = 0.2  # a first call this long needs no second call to warm up
MIN_ROUNDS = 3  # rounds that are always measured, whatever the budget
#: Limits on the calls in one timing, and on the calls captured in one CUDA graph.
MAX_CALLS, MAX_CAPTURED_CALLS = 200, 20
#: Calls before a capture, in which libraries choose their kernels and Triton compiles its own.
CALLS_BEFORE_CAPTURE = 3


@dataclass(frozen=True)
class BenchSettings:
    """How and where to measure."""

    device: torch.device
    full: bool = False  # measure larger grids, and what takes long to prepare
    # Rounds of every measurement; None leaves the number to each part and its budget
    repeats: int | None = None

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    @property
    def half(self) -> torch.dtype | None:
        """The type of autocast on a GPU; elsewhere there is none."""
        return torch.bfloat16 if self.on_gpu else None

    @property
    def memory(self) -> str:
        """The memory that is measured here, for the titles of columns."""
        return "peak MB" if self.on_gpu else "MB saved for backward"

    def environment(self, dtype: torch.dtype | str) -> dict[str, str]:
        """Machine, device, threads, torch and dtype; a timing means nothing without them."""
        name = torch.cuda.get_device_name(self.device) if self.on_gpu else str(self.device)
        return {
            "machine": f"{processor_name()} with {os.cpu_count()} cores",
            "device": name,
            "threads": str(torch.get_num_threads()),
            "torch": torch.__version__,
            "dtype": str(dtype).removeprefix("torch."),
        }


def processor_name() -> str:
    """The name its maker gives the processor, where the system knows it."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name" and value.strip():
                return value.strip()
    return platform.processor() or platform.machine()


# Time


@dataclass(frozen=True)
class Timing:
    """Seconds of one call in each round, and those of the first candidate in the same rounds."""

    seconds: tuple[float, ...]
    first: tuple[float, ...]

    @property
    def ms(self) -> Spread:
        return Spread.ms(self.seconds)

    @property
    def speed_up(self) -> Spread:
        """The first candidate's time over this one's, round by round."""
        return Spread.ratio(self.first, self.seconds)


def time_interleaved(
    timers: Mapping[str, Timer],
    repeats: int | None,
    *,
    usual: int,
    budget: float,
    failed: Callable[[str, Exception], None] | None = None,
) -> dict[str, Timing]:
    """Time every candidate once a round: A B C, B C A, C A B and so on, after a warm-up round.

    Because candidates take turns, other load on the machine slows all of them alike.

    Args:
        timers: by name; ratios are to the first.
        repeats: rounds; None: the usual number, as far as the budget allows.
        usual: rounds if `repeats` is None.
        budget: seconds after which no further round begins if `repeats` is None.
        failed: called for a candidate that raises in its warm-up, which is then left out. An error
            of the first candidate is not caught, because there are no ratios without it.
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
    started = time.perf_counter()
    for number in range(usual if repeats is None else repeats):
        may_stop = repeats is None and number >= MIN_ROUNDS
        if may_stop and time.perf_counter() - started > budget:
            break
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            seconds[name].append(ready[name]())
    first = tuple(seconds[names[0]])
    return {name: Timing(tuple(found), first) for name, found in seconds.items()}


class Stopwatch:
    """Seconds of one call, averaged over enough calls in a row for a reliable timing.

    On a CUDA device events around the row measure the time, and the host runs ahead as it does in
    training. Elsewhere the host's clock measures it. The first call warms up and finds the number
    of calls in a row.

    Args:
        calls: number of calls in a row; None: the first call finds it.
    """

    def __init__(
        self,
        work: Work,
        device: torch.device,
        min_seconds: float = MIN_SECONDS,
        calls: int | None = None,
    ) -> None:
        self.work, self.device, self.min_seconds, self.calls = work, device, min_seconds, calls
        self.ready = False

    def __call__(self) -> float:
        if not self.ready:
            first = self.prepare()
            self.ready = True
            return first
        return self._seconds(self.calls or 1)

    def prepare(self) -> float:
        """Warm up, and find how many calls to make in a row; returns the seconds of one call."""
        first = self._seconds(self.calls or 1)
        if first < LONG_CALL:
            first = self._seconds(self.calls or 1)
        if self.calls is None:
            enough = math.ceil(self.min_seconds / max(first, 1e-9))
            self.calls = min(max(enough, 1), MAX_CALLS)
        return first

    def run_calls(self, calls: int) -> None:
        for _ in range(calls):
            self.work()

    def _seconds(self, calls: int) -> float:
        synchronize(self.device)
        if self.device.type == "cuda":
            begin, end = _event(), _event()
            begin.record()
            self.run_calls(calls)
            end.record()
            end.synchronize()
            return float(begin.elapsed_time(end)) / 1000 / calls
        started = time.perf_counter()
        self.run_calls(calls)
        synchronize(self.device)
        return (time.perf_counter() - started) / calls


class GraphStopwatch(Stopwatch):
    """Times the same calls captured in one CUDA graph, without the host in between."""

    graph: Any = None

    def prepare(self) -> float:
        side = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(side):
            for _ in range(CALLS_BEFORE_CAPTURE):
                self.work()
        torch.cuda.current_stream(self.device).wait_stream(side)
        super().prepare()
        self.calls = min(self.calls or 1, MAX_CAPTURED_CALLS)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side):
            super().run_calls(self.calls)
        self.graph = graph
        graph.replay()
        return self._seconds(self.calls)

    def run_calls(self, calls: int) -> None:
        if self.graph is None:
            super().run_calls(calls)
        else:
            self.graph.replay()


def time_works(
    works: Mapping[str, Work],
    settings: BenchSettings,
    *,
    usual: int,
    budget: float,
    watch: type[Stopwatch] = Stopwatch,
    failed: Callable[[str, Exception], None] | None = None,
) -> dict[str, Timing]:
    """:func:`time_interleaved` with a stopwatch for each work."""
    timers = {name: watch(work, settings.device) for name, work in works.items()}
    return time_interleaved(timers, settings.repeats, usual=usual, budget=budget, failed=failed)


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


# Memory


def peak_bytes(work: Work, device: torch.device) -> int:
    """The most that the CUDA allocator holds during the work, beyond what it held before."""
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    work()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


def saved_bytes(forward: Work, given: Iterable[Tensor]) -> int:
    """Bytes that a forward pass saves for its backward pass; each storage counts once.

    Args:
        given: tensors that exist anyway: inputs and parameters.

    >>> x = torch.randn(8, requires_grad=True)
    >>> saved_bytes(lambda: x.exp(), [x]), saved_bytes(lambda: x.square(), [x])
    (32, 0)
    """
    known = {tensor.untyped_storage().data_ptr() for tensor in given}
    sizes: dict[int, int] = {}
    alive: list[Tensor] = []  # a freed storage could give its address to another

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            sizes[storage.data_ptr()] = storage.nbytes()
            alive.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        result = forward()
    del result
    return sum(sizes.values())


def release_memory(device: torch.device) -> None:
    """Free unused memory, so that one measurement does not crowd the next."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
