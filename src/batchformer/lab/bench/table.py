"""Tables of measurements: for a terminal, for Markdown and for JSON. Nothing here needs torch."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from batchformer.insight.optional import extra

if TYPE_CHECKING:
    from rich.console import Console

MAX_WIDTH = 120  # columns of a terminal that a table uses at most


@dataclass(frozen=True)
class Spread:
    """The median of several rounds, and the quartiles between which half of the rounds lie."""

    median: float
    low: float
    high: float
    rounds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Median and quartiles of values.

        >>> Spread.of([1.0, 2.0, 3.0, 4.0, 9.0])
        Spread(median=3.0, low=2.0, high=4.0, rounds=5)
        """
        if len(values) < 2:
            return cls(values[0], values[0], values[0], 1)
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, low, high, len(values))

    @classmethod
    def ms(cls, seconds: Sequence[float]) -> Spread:
        """The spread of seconds, in milliseconds."""
        return cls.of([1000 * s for s in seconds])

    @classmethod
    def ratio(cls, above: Sequence[float], below: Sequence[float]) -> Spread:
        """The spread of `above` over `below`, round by round."""
        return cls.of([a / b for a, b in zip(above, below, strict=True)])

    def map(self, change: Callable[[float], float]) -> Spread:
        """The spread in another unit. `change` is monotonic; a falling one swaps the quartiles."""
        low, high = sorted((change(self.low), change(self.high)))
        return Spread(change(self.median), low, high, self.rounds)


Cell = str | int | float | Spread | None


@dataclass
class Table:
    """Rows of measurements, the environment they were measured in, and notes for a reader."""

    part: str  # the part of the benchmark, as `--only` names it
    title: str
    columns: tuple[str, ...]  # names with units
    environment: dict[str, str]  # machine, device, threads, torch, dtype
    rows: list[tuple[Cell, ...]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # sentences under the table
    failed: bool = False  # whether the part measured nothing
    values: dict[str, list[float]] = field(default_factory=dict)  # raw values, saved, not printed

    def add(self, *cells: Cell) -> None:
        if len(cells) != len(self.columns):
            raise ValueError(f"{len(cells)} cells for the columns {', '.join(self.columns)}")
        self.rows.append(cells)

    def note_failure(self, what: str, error: BaseException) -> None:
        """Add a note in place of what could not be measured."""
        self.notes.append(f"{what} was not measured: {first_line(error)}")

    @contextmanager
    def attempt(self, what: str) -> Iterator[None]:
        """Turn an error inside the block into a note, so that the rest of the table survives."""
        try:
            yield
        except Exception as error:
            self.note_failure(what, error)

    @property
    def environment_line(self) -> str:
        return ", ".join(f"{key} {value}" for key, value in self.environment.items())

    def texts(self) -> list[tuple[str, ...]]:
        return [tuple(map(cell_text, row)) for row in self.rows]

    def is_text(self, column: int) -> bool:
        """Whether a column holds words rather than numbers."""
        return all(isinstance(row[column], str) for row in self.rows)

    def as_json(self) -> dict[str, Any]:
        """Plain values; a spread becomes an object."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Table:
        """The table that :meth:`as_json` described."""
        rows = [
            tuple(Spread(**cell) if isinstance(cell, dict) else cell for cell in row)
            for row in found["rows"]
        ]
        return cls(**{**found, "columns": tuple(found["columns"]), "rows": rows})

    def as_markdown(self) -> str:
        """A heading, the table and the notes."""
        blocks = [f"### {self.title}", f"Measured on: {self.environment_line}."]
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
        """Print the table to a terminal or a pipe."""
        with extra("lab"):
            from rich import box
            from rich.console import Console as RichConsole
            from rich.table import Table as RichTable
            from rich.text import Text

        console = console or RichConsole()
        width = min(console.width, MAX_WIDTH)

        def say(text: str, style: str = "") -> None:
            console.print(text, style=style, markup=False, highlight=False, width=width)

        say(f"\n{self.title}", "bold")
        say(self.environment_line)
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
    """Three significant digits, or the whole integer part.

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
    """A cell as text; a spread is its median, with its quartiles in brackets."""
    if cell is None:
        return ""
    if isinstance(cell, Spread):
        middle = number_text(cell.median)
        if cell.rounds < 2:
            return middle
        return f"{middle} [{number_text(cell.low)}, {number_text(cell.high)}]"
    return number_text(cell) if isinstance(cell, float) else str(cell)


def first_line(error: BaseException) -> str:
    """The first line of an error's message, without the full stop."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")


def read_tables(path: Path) -> list[Table]:
    """The tables of a ``bench.json``."""
    try:
        return [Table.from_json(found) for found in json.loads(path.read_bytes())["tables"]]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        message = f"{path} is not a file of `batchformer bench` ({first_line(error)})"
        raise ValueError(message) from error
