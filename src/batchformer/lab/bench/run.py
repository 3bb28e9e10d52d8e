"""Run the parts of the benchmark one after the other, and save each as it ends."""

from __future__ import annotations

import importlib
import json
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from batchformer.insight.files import write_atomically
from batchformer.lab.bench.measure import BenchSettings
from batchformer.lab.bench.table import Table, first_line, read_tables
from batchformer.lab.engine.interrupt import Interrupted

if TYPE_CHECKING:
    from rich.console import Console

#: The module of each part, in the order in which they run.
PARTS = {
    name: f"batchformer.lab.bench.{name}"
    for name in ("layer", "growth", "step", "exchange", "transforms", "loader")
}
IDLE_LOAD = 0.5  # the largest load, in processes, of a machine that counts as idle


def run(
    settings: BenchSettings,
    folder: Path,
    only: Sequence[str] = (),
    console: Console | None = None,
    parts: Mapping[str, str] = PARTS,
) -> list[Table]:
    """Measure, print and save. A part that fails says why, and the others go on.

    Tables that the folder already holds stay, except those of parts that are measured again in
    the same environment.

    Args:
        folder: gets ``bench.json`` and ``bench.md``.
        only: names of parts; by default all.
        parts: the module of each part, which has a function ``measure(settings)``.

    Raises:
        Interrupted: Ctrl-C; the finished parts are saved.
    """
    saved, measured = read_earlier(folder / "bench.json"), list[Table]()
    load_note = busy_note()
    with torch.cuda.device(settings.device) if settings.on_gpu else nullcontext():
        for name in dict.fromkeys(only or parts):
            try:
                table = importlib.import_module(parts[name]).measure(settings)
            except KeyboardInterrupt as stop:
                done = ", ".join(table.part for table in measured) or "nothing"
                words = f"bench: stopped during {name}; {done} measured and kept in {folder}."
                raise Interrupted(signal.SIGINT, words) from stop
            except Exception as error:
                notes = [f"{type(error).__name__}: {first_line(error)}"]
                table = Table(name, name, (), settings.environment("none"), [], notes, failed=True)
            else:
                table.notes += load_note
                table.failed = not table.rows
            measured.append(table)
            saved = merged(saved, table)
            save(folder, saved)
            table.print(console)
    return measured


def busy_note() -> list[str]:
    """A note for all tables if the machine has other work, which spreads cannot show."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if load <= IDLE_LOAD:
        return []
    return [f"The machine was not idle: its load was {load:.1f} when the benchmark began"]


def merged(saved: Sequence[Table], new: Table) -> list[Table]:
    """The saved tables and the new one, in the order of the parts.

    The new table replaces that of the same part and environment, unless the new one is a failure.
    """
    same = [t for t in saved if t.part == new.part and _environment(t) == _environment(new)]
    if new.failed and any(not table.failed for table in same):
        return list(saved)
    order = list(PARTS)
    return sorted(
        [*(t for t in saved if t not in same), new],
        key=lambda t: order.index(t.part) if t.part in order else len(order),
    )


def save(folder: Path, tables: Sequence[Table]) -> None:
    """Write ``bench.json`` and ``bench.md``, each atomically."""
    content = json.dumps({"tables": [table.as_json() for table in tables]}, indent=1)
    write_atomically(folder / "bench.json", content.encode() + b"\n")
    markdown = "\n".join(table.as_markdown() for table in tables)
    write_atomically(folder / "bench.md", markdown.encode())


def read_earlier(path: Path) -> list[Table]:
    """The tables measured before; none if there is no such file."""
    if not path.is_file():
        return []
    try:
        return read_tables(path)
    except ValueError as error:
        advice = "move it away or choose another folder with --to"
        raise ValueError(f"{error}; {advice}") from error


def _environment(table: Table) -> dict[str, str]:
    """The environment without the dtype, which each part chooses itself."""
    return {key: value for key, value in table.environment.items() if key != "dtype"}
