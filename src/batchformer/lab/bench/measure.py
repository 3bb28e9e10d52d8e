"""How things are measured: settings, timing in turn, memory, spread, tables."""

from __future__ import annotations

import dataclasses
import gc
import json
import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from batchformer.insight.optional import extra

if TYPE_CHECKING:
    from rich.console import Console

# A measured number and how far its repetitions lie apart.


@dataclass(frozen=True)
class Spread:
    """The median of several rounds, and the quartiles between which half of them lie."""

    median: float
    low: float
    high: float
    rounds: int

    def through(self, change: Callable[[float], float]) -> Spread:
        """In another unit: a monotonous change of the number, which may exchange the quartiles."""
        low, high = sorted((change(self.low), change(self.high)))
        return Spread(change(self.median), low, high, self.rounds)


def spread_of(values: Sequence[float]) -> Spread:
    """Median and quartiles.

    >>> spread_of([1.0, 2.0, 3.0, 4.0, 9.0])
    Spread(median=3.0, low=2.0, high=4.0, rounds=5)
    """
    if len(values) < 2:
        return Spread(values[0], values[0], values[0], 1)
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(median, low, high, len(values))


def median_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """An interval for the median of what the values are drawn from, whatever its distribution.

    The k-th smallest and the k-th largest value, with the largest k that keeps the confidence; all
    values where there are too few for any.

    >>> median_interval([float(i) for i in range(1, 21)])
    (6.0, 15.0)
    """
    ordered, n = sorted(values), len(values)
    outside, k = 0.0, 0
    while k < n // 2:
        outside += 2 * math.comb(n, k) / 2**n
        if outside > 1 - confidence:
            break
        k += 1
    k = max(k, 1)
    return ordered[k - 1], ordered[n - k]


# What every part of the benchmark is told, and where it runs.


@dataclass(frozen=True)
class BenchSettings:
    """How and where to measure.

    Args:
        device: where the work is done.
        full: larger grids, and what takes long to prepare.
        repeats: rounds of every measurement; None leaves them to each part and its time.
    """

    device: torch.device
    full: bool = False
    repeats: int | None = None

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    @property
    def layer_dtype(self) -> torch.dtype:
        """The type in which layers are measured by themselves."""
        return torch.bfloat16 if self.on_gpu else torch.float32

    def environment(self, dtype: torch.dtype | str) -> dict[str, str]:
        """Machine, device, threads, torch and type: without them a timing means nothing."""
        kind = str(dtype).removeprefix("torch.")
        name = torch.cuda.get_device_name(self.device) if self.on_gpu else str(self.device)
        return {
            "machine": f"{processor_name()} with {os.cpu_count()} cores",
            "device": name,
            "threads": str(torch.get_num_threads()),
            "torch": torch.__version__,
            "dtype": kind,
        }

    def need_gpu(self, what: str) -> None:
        """Refuse a part that has nothing to measure elsewhere."""
        if not self.on_gpu:
            raise RuntimeError(
                f"{what} needs a CUDA device, and this is {self.device}; leave it out with --only"
            )


def processor_name() -> str:
    """The processor as its maker calls it, where the system says so."""
    listed = Path("/proc/cpuinfo")
    if listed.is_file():
        for line in listed.read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name" and value.strip():
                return value.strip()
    return platform.processor() or platform.machine()


# Bytes that a computation needs beyond what it is given.


def peak_bytes(work: Callable[[], object], device: torch.device) -> int:
    """The most that the CUDA allocator holds during the work, beyond what it held before."""
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    work()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


def saved_bytes(forward: Callable[[], object], given: Iterable[Tensor]) -> int:
    """Bytes that a forward pass keeps for its backward pass, each storage counted once.

    Args:
        forward: the pass.
        given: tensors that exist anyway: inputs and parameters.

    >>> x = torch.randn(8, requires_grad=True)
    >>> saved_bytes(lambda: x.exp(), [x]), saved_bytes(lambda: x.square(), [x])
    (32, 0)
    """
    known = {tensor.untyped_storage().data_ptr() for tensor in given}
    sizes: dict[int, int] = {}
    kept: list[Tensor] = []  # a storage that was freed could lend its address to another

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            sizes[storage.data_ptr()] = storage.nbytes()
            kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        result = forward()
    del result
    return sum(sizes.values())


def release(device: torch.device) -> None:
    """Give back what nobody holds any more, so that one measurement does not crowd the next."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


# Candidates timed in turn, so that what else the machine does meets all of them alike.

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


# What a part of the benchmark found: for a terminal, for Markdown, for JSON; nothing here needs
# torch.

Cell = str | int | float | Spread | None

WIDEST = 120


@dataclass
class Table:
    """Rows of measurements, what they were measured on, and what a reader must know.

    Args:
        part: of the benchmark, as ``--only`` names it.
        title: what is compared.
        columns: names with units.
        environment: machine, device, threads, torch, dtype.
        rows: one cell for each column.
        notes: sentences under the table.
        failed: whether the part broke off.
    """

    part: str
    title: str
    columns: tuple[str, ...]
    environment: dict[str, str]
    rows: list[tuple[Cell, ...]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    failed: bool = False

    def add(self, *cells: Cell) -> None:
        """One row."""
        if len(cells) != len(self.columns):
            raise ValueError(f"{len(cells)} cells for the columns {', '.join(self.columns)}")
        self.rows.append(cells)

    def refuse(self, what: str, error: BaseException) -> None:
        """A note in place of what could not be measured."""
        self.notes.append(f"{what} was not measured: {first_line(error)}")

    @contextmanager
    def attempt(self, what: str) -> Iterator[None]:
        """An error inside the block costs what it measures, not the rest of the table."""
        try:
            yield
        except Exception as error:
            self.refuse(what, error)

    @property
    def surroundings(self) -> str:
        """Machine, device, threads, torch and dtype in one line."""
        return ", ".join(f"{key} {value}" for key, value in self.environment.items())

    def texts(self) -> list[tuple[str, ...]]:
        """The rows as they are read."""
        return [tuple(map(cell_text, row)) for row in self.rows]

    def is_text(self, column: int) -> bool:
        """Whether a column holds words rather than numbers."""
        return all(isinstance(row[column], str) for row in self.rows)

    def as_json(self) -> dict[str, Any]:
        """Plain values; a spread becomes an object."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Table:
        """What :meth:`as_json` gave."""
        rows = [
            tuple(Spread(**cell) if isinstance(cell, dict) else cell for cell in row)
            for row in found["rows"]
        ]
        return cls(**{**found, "columns": tuple(found["columns"]), "rows": rows})

    def as_markdown(self) -> str:
        """A heading, the table and the notes."""
        blocks = [f"### {self.title}", f"Measured on: {self.surroundings}."]
        if self.rows:
            rule = tuple("---" if self.is_text(i) else "---:" for i in range(len(self.columns)))
            lines = (
                "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
                for cells in [self.columns, rule, *self.texts()]
            )
            blocks.append("\n".join(lines))
        if self.notes:
            blocks.append("\n".join(f"- {note}." for note in self.notes))
        return "\n\n".join(blocks) + "\n"

    def print(self, console: Console | None = None) -> None:
        """For a person at a terminal, or for a pipe."""
        with extra("lab"):
            from rich import box
            from rich.console import Console as RichConsole
            from rich.table import Table as RichTable
            from rich.text import Text

        console = console or RichConsole()
        width = min(console.width, WIDEST)

        def say(text: str, style: str = "") -> None:
            console.print(text, style=style, markup=False, highlight=False, width=width)

        say(f"\n{self.title}", "bold")
        say(self.surroundings)
        if self.rows:
            table = RichTable(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
            for index, column in enumerate(self.columns):
                text = self.is_text(index)
                table.add_column(Text(column), justify="left" if text else "right", no_wrap=text)
            for row in self.texts():
                table.add_row(*map(Text, row))
            console.print(table, width=width)
        for note in self.notes:
            say(f"Note: {note}.")


def number_text(value: float) -> str:
    """Three figures, or all of the whole part.

    >>> [number_text(x) for x in (12345.6, 45.678, 0.9999, -0.012345, 0.0)]
    ['12,346', '45.7', '1.00', '-0.0123', '0']
    """
    size = abs(value)
    if size >= 99.95:
        return f"{value:,.0f}"
    if size >= 9.995:
        return f"{value:.1f}"
    return f"{value:.2f}" if size >= 0.9995 else f"{value:.3g}"


def cell_text(cell: Cell) -> str:
    """A cell as it is read; a spread is its median and, in brackets, its quartiles."""
    if cell is None:
        return ""
    if isinstance(cell, Spread):
        middle = number_text(cell.median)
        if cell.rounds < 2:
            return middle
        return f"{middle} [{number_text(cell.low)}, {number_text(cell.high)}]"
    return number_text(cell) if isinstance(cell, float) else str(cell)


def first_line(error: BaseException) -> str:
    """What an error says, in one line."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")


def markdown_of(tables: Sequence[Table]) -> str:
    """All tables, one under the other."""
    return "\n".join(table.as_markdown() for table in tables)


def read_tables(path: Path) -> list[Table]:
    """The tables of a ``bench.json``.

    Raises:
        ValueError: the file is something else.
    """
    try:
        return [Table.from_json(found) for found in json.loads(path.read_bytes())["tables"]]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        message = f"{path} is not a file of `batchformer bench` ({first_line(error)})"
        raise ValueError(message) from error
