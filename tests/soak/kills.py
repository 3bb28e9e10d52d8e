"""Kill a training at random moments, resume it, and compare it with one that was never killed."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from batchformer.lab.engine import checkpoint
from batchformer.lab.report.results.runs import Arrays
from helpers.lab_runs import records_of, result_of, same
from soak.processes import PLACES, die_in_write, finish, start

#: A short training with many checkpoints.
SHORT = ("--train.updates", "60", "--train.eval-every", "20", "--train.checkpoint-every", "4")


def train(runs: Path, options: Sequence[str] = SHORT) -> list[str]:
    """The command line of one arm of the demo, in a folder of runs."""
    fixed = ("--arm", "batchformer", "--train.log-every", "7", "--device", "cpu", "--quiet")
    return ["train", "demo", *fixed, *options, "--runs", str(runs)]


def folder_of(runs: Path) -> Path:
    """The run folder of that command."""
    return runs / "demo" / "batchformer" / "seed0"


@dataclass(frozen=True)
class Kill:
    """One training that was killed, and what became of it."""

    moment: str  # seconds after its start, or the place inside the write of a checkpoint
    saved: int  # update of the newest checkpoint that it left, 0 without one
    partial: int  # files that it left
    unreadable: tuple[str, ...]  # files with their final names that are damaged
    differences: tuple[str, ...]  # from the unbroken run, after resuming


@dataclass(frozen=True)
class Unbroken:
    """A training that was not killed, and how long it took."""

    folder: Path
    seconds: float


def unbroken(root: Path, options: Sequence[str] = SHORT) -> Unbroken:
    """Train without a kill."""
    root.mkdir(parents=True, exist_ok=True)
    finish(start(["--version"], root / "first.out"))  # loads the process that the others fork from
    began = time.perf_counter()
    go_on(root / "unbroken", options)
    return Unbroken(folder_of(root / "unbroken"), time.perf_counter() - began)


def moments(
    count: int, seed: int, seconds: float, writes: int
) -> Iterator[float | tuple[str, int]]:
    """When to kill: alternately at a random time and inside one of so many writes."""
    draw = random.Random(seed)
    for number in range(count):
        if number % 2:
            yield PLACES[number // 2 % len(PLACES)], draw.randint(1, writes)
        else:
            yield draw.uniform(0, seconds)


def killed(
    root: Path, whole: Unbroken, moment: float | tuple[str, int], options: Sequence[str] = SHORT
) -> Kill | None:
    """Kill a training, inspect what it left, resume it, and compare; None if it ended before."""
    trap = None if isinstance(moment, float) else partial(die_in_write, *moment)
    process = start(train(root, options), root.with_suffix(".out"), trap)
    if isinstance(moment, float):
        process.join(moment)
        process.kill()
    if finish(process) == 0:
        return None
    folder = folder_of(root)
    left = checkpoint.load_newest(folder / "checkpoints", lambda _: None)
    saved = int(left["counters"]["update"]) if left else 0
    partials, torn = len(list(root.rglob("*.partial"))), tuple(unreadable(folder))
    go_on(root, options)
    words = f"{moment:.2f} s" if isinstance(moment, float) else f"{moment[0]}, write {moment[1]}"
    return Kill(words, saved, partials, torn, tuple(differences(whole.folder, folder)))


def go_on(runs: Path, options: Sequence[str] = SHORT) -> None:
    """Train to the end; an error says what it printed."""
    output = runs.with_suffix(".out")
    output.parent.mkdir(parents=True, exist_ok=True)
    code = finish(start(train(runs, options), output))
    if code:
        raise RuntimeError(f"a training ended with {code}:\n{output.read_text()}")


def unreadable(folder: Path) -> Iterator[str]:
    """Files of a run, with their final names, that cannot be read."""
    for path in sorted(folder.rglob("*")):
        read = _READERS.get(path.suffix)
        if read is not None and path.is_file():
            try:
                read(path)
            except Exception as error:  # whatever it is, the file is damaged
                yield f"{path.name}: {error}"


def _read_arrays(path: Path) -> None:
    if problem := Arrays(path).problem():
        raise ValueError(problem)


_READERS: dict[str, Callable[[Path], object]] = {
    ".pt": checkpoint.load,
    ".json": lambda path: json.loads(path.read_bytes()),
    ".npz": _read_arrays,
}


def differences(one: Path, other: Path) -> Iterator[str]:
    """Where two finished runs are not bit-equal: records, scores, arrays, and the last state."""
    if records_of(one) != records_of(other):
        yield "metrics.jsonl"
    if result_of(one)["metrics"] != result_of(other)["metrics"]:
        yield "result.json"
    for name in ("figures.npz", "insight.npz"):
        a, b = Arrays(one / name), Arrays(other / name)
        if set(a) != set(b) or any(a[key].tobytes() != b[key].tobytes() for key in a):
            yield name
    states = [checkpoint.load_newest(folder / "checkpoints") or {} for folder in (one, other)]
    for part in ("method", "optimizers", "average", "best", "window", "rng"):
        if not same(states[0][part], states[1][part]):
            yield f"checkpoint: {part}"
