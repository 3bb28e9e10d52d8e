"""The parts of the benchmark, one after the other; each is kept as it ends."""

from __future__ import annotations

import importlib
import json
import os
import signal
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from batchformer.lab.bench.measure import BenchSettings, Table, first_line, markdown_of, read_tables
from batchformer.lab.engine.interrupt import Interrupted
from batchformer.plug.files import write_atomically

if TYPE_CHECKING:
    from rich.console import Console

#: Where each part lives, in the order in which they run.
PARTS = {
    "attention": "batchformer.lab.bench.attention",
    "growth": "batchformer.lab.bench.growth",
    "step": "batchformer.lab.bench.step",
    "contrast": "batchformer.lab.bench.contrast",
    "profile": "batchformer.lab.bench.profile",
    "side_by_side": "batchformer.lab.bench.side_by_side",
    "exchange": "batchformer.lab.bench.exchange",
    "loop": "batchformer.lab.bench.loop",
    "transforms": "batchformer.lab.bench.transforms",
    "loader": "batchformer.lab.bench.loader",
}
#: Parts that have something to measure on a CUDA device alone.
ON_GPU_ALONE = ("profile", "side_by_side")
#: Load, in processes, that an idle machine may have.
IDLE = 0.5


def run(
    settings: BenchSettings,
    folder: Path,
    only: Sequence[str] = (),
    console: Console | None = None,
) -> list[Table]:
    """Measure, print and keep; a part that fails says why, and the others go on.

    What the folder holds from before stays, but for parts measured again in the same surroundings.

    Args:
        settings: how and where.
        folder: gets ``bench.json`` and ``bench.md``.
        only: names of parts; by default all that the device allows.
        console: where tables are printed.

    Raises:
        Interrupted: Ctrl-C; the finished parts are kept.
    """
    names = list(dict.fromkeys(only)) or [
        name for name in PARTS if settings.on_gpu or name not in ON_GPU_ALONE
    ]
    kept, measured = read(folder / "bench.json"), list[Table]()
    company = busy_note()
    with torch.cuda.device(settings.device) if settings.on_gpu else nullcontext():
        for name in names:
            try:
                table = importlib.import_module(PARTS[name]).measure(settings)
            except KeyboardInterrupt as stop:
                done = ", ".join(table.part for table in measured) or "nothing"
                words = f"bench: stopped during {name}; {done} measured and kept in {folder}."
                raise Interrupted(signal.SIGINT, words) from stop
            except Exception as error:
                table = failure(name, settings, error)
            else:
                table.notes += company
                table.failed = not table.rows
            measured.append(table)
            kept = merged(kept, table)
            save(folder, kept)
            table.print(console)
    return measured


def busy_note() -> list[str]:
    """A sentence for all tables if the machine has other work, which spreads cannot show."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if load <= IDLE:
        return []
    return [f"The machine was not idle: its load was {load:.1f} when the benchmark began"]


def failure(name: str, settings: BenchSettings, error: Exception) -> Table:
    """A table that says why there is none."""
    reason = f"{type(error).__name__}: {first_line(error)}"
    return Table(name, name, (), settings.environment("none"), notes=[reason], failed=True)


def merged(kept: Sequence[Table], new: Table) -> list[Table]:
    """With the new table in the place of the old one, if it is not a failure; parts in order."""
    same = [t for t in kept if t.part == new.part and _place(t) == _place(new)]
    if new.failed and any(not table.failed for table in same):
        return list(kept)
    order = list(PARTS)
    return sorted(
        [*(t for t in kept if t not in same), new],
        key=lambda t: order.index(t.part) if t.part in order else len(order),
    )


def save(folder: Path, tables: Sequence[Table]) -> None:
    """``bench.json`` and ``bench.md``, each whole or as it was."""
    content = json.dumps({"tables": [table.as_json() for table in tables]}, indent=1)
    write_atomically(folder / "bench.json", content.encode() + b"\n")
    write_atomically(folder / "bench.md", markdown_of(tables).encode())


def read(path: Path) -> list[Table]:
    """What was measured before; nothing where there is no such file."""
    if not path.is_file():
        return []
    try:
        return read_tables(path)
    except ValueError as error:
        advice = "move it away or choose another folder with --to"
        raise ValueError(f"{error}; {advice}") from error


def _place(table: Table) -> dict[str, str]:
    return {key: value for key, value in table.environment.items() if key != "dtype"}
