"""The memory of a long training, which must not grow after its warm-up."""

from __future__ import annotations

import os
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

from batchformer.lab.engine.log import read_records
from soak.kills import folder_of, train
from soak.processes import finish, start

#: Updates between evaluations, and between checkpoints: both happen in every window.
EVERY = 100


@dataclass(frozen=True)
class Memory:
    """Resident memory of a training of so many updates after its warm-up."""

    updates: int
    warm_up: int
    megabytes: tuple[float, ...]  # median over each window, in order

    @property
    def spread(self) -> float:
        """The difference between the largest and the smallest window, relative to the smallest."""
        return max(self.megabytes) / min(self.megabytes) - 1


def memory_of_a_run(
    root: Path, updates: int = 2000, warm_up: int = 500, window: int = 250
) -> Memory:
    """Train for this many updates, and read the process's memory from outside, window by window."""
    every = str(EVERY)
    length = ("--train.updates", str(updates), "--train.eval-every", every)
    output = root.with_suffix(".out")
    output.parent.mkdir(parents=True, exist_ok=True)
    process = start(train(root, (*length, "--train.checkpoint-every", every)), output)
    records = folder_of(root) / "metrics.jsonl"
    seen: dict[int, list[float]] = {}
    while process.exitcode is None:
        step = max((record["step"] for record in read_records(records)), default=0)
        used = _resident(process.pid)
        if used is not None and warm_up <= step < updates:
            seen.setdefault((step - warm_up) // window, []).append(used)
        time.sleep(0.05)
    if finish(process):
        raise RuntimeError(f"the training failed:\n{output.read_text()}")
    if len(seen) < 2:
        raise RuntimeError("the training ended before its memory could be measured; train longer")
    return Memory(updates, warm_up, tuple(statistics.median(seen[k]) for k in sorted(seen)))


def _resident(process: int | None) -> float | None:
    """Resident megabytes of a process; None if it has ended."""
    try:
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
