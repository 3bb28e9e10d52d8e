"""Commands that train the same runs at once: one trains, the others are refused in words."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from batchformer.lab.engine.checkpoint import load_newest
from batchformer.lab.runs.compare import several_machines
from helpers.lab_runs import bytes_of, held_by_another
from soak.nodes import start_ranks
from soak.processes import finish, start

#: So many that a process can be stopped before the last.
UPDATES = 40
LENGTH = ["--train.updates", str(UPDATES), "--train.eval-every", str(UPDATES)]
QUICK = ["--train.no-figures", "--device", "cpu", "--quiet"]
OPTIONS = [*LENGTH, "--train.checkpoint-every", "3", *QUICK]
SHORT = ["--train.updates", "2", "--train.eval-every", "2", *QUICK]


def train(runs: Path, seed: int = 0) -> list[str]:
    return ["train", "demo", "--arm", "baseline", "--seed", str(seed), "--runs", str(runs)]


def said_by(
    command: list[str], output: Path, prepare: Callable[[], None] | None = None
) -> tuple[int, str]:
    """A command's exit code and its words."""
    code = finish(start(command, output, prepare))
    return code, output.read_text()


def first_checkpoint(folder: Path, *processes: BaseProcess) -> None:
    """Wait until a run has saved something, and have its processes stand still."""
    end = time.monotonic() + 300
    while not list((folder / "checkpoints").glob("[0-9]*.pt")):
        assert time.monotonic() < end and all(one.is_alive() for one in processes)
        time.sleep(0.005)
    for process in processes:
        os.kill(process.pid or 0, signal.SIGSTOP)


def refused(folder: Path, code: int, said: str) -> None:
    """In words that name the folder, the reason and the way out."""
    assert code == 1 and "Traceback" not in said, said
    assert said.count(f"{folder} is being trained by another process") == 1, said
    assert "--runs" in said and "nothing was changed" in said


def test_the_second_is_refused_others_go_on_and_so_does_a_killed_one(tmp_path: Path) -> None:
    runs, folder = tmp_path / "runs", tmp_path / "runs/demo/baseline/seed0"
    first = start([*train(runs), *OPTIONS], tmp_path / "first.out")
    first_checkpoint(folder, first)
    before = bytes_of(folder)
    others = {  # all at once: each takes as long as the others
        "second": [*train(runs), *OPTIONS],
        "third": ["compare", "demo", "--seeds", "1", "--runs", str(runs), *OPTIONS],
        "other seed": [*train(runs, seed=1), *SHORT],
        "reader": ["evaluate", str(folder), "--device", "cpu"],
    }
    started = {name: start(command, tmp_path / name) for name, command in others.items()}
    codes = {name: finish(process) for name, process in started.items()}
    said = {name: (tmp_path / name).read_text() for name in others}
    for name in ("second", "third"):
        refused(folder, codes[name], said[name])
    assert codes["other seed"] == codes["reader"] == 0, said
    assert bytes_of(folder) == before and not (runs / "demo/batchformer").exists()

    first.kill()
    assert finish(first) == -signal.SIGKILL
    state = load_newest(folder / "checkpoints")
    assert state is not None and state["counters"]["update"] < UPDATES
    code, words = said_by([*train(runs), *OPTIONS], tmp_path / "again.out")
    assert code == 0 and f"Finished: {folder}" in words, words


def test_one_run_of_many_is_enough_to_be_refused(tmp_path: Path) -> None:
    together = ["compare", "demo", "--seeds", "2", "--together", "4", "--runs", str(tmp_path)]
    sweep = ["sweep", "demo_layers", "--levels", "1", "2", "--seeds", "1", "--runs", str(tmp_path)]
    cases = {"demo/batchformer/seed1": together, "demo_layers/2/batchformer/seed0": sweep}
    with ExitStack() as others:
        for name in cases:
            lock = (tmp_path / name).with_name(f".{Path(name).name}.lock")
            others.enter_context(held_by_another(lock))
        outputs = [tmp_path / command[0] for command in cases.values()]
        started = [start([*c, *SHORT], o) for c, o in zip(cases.values(), outputs, strict=True)]
        codes = [finish(process) for process in started]
    for name, code, output in zip(cases, codes, outputs, strict=True):
        refused(tmp_path / name, code, output.read_text())
    left = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {"compare", "sweep", ".seed0.lock", ".seed1.lock"}


def test_of_several_ranks_the_first_holds_the_lock_for_all(tmp_path: Path) -> None:
    runs, folder = tmp_path / "runs", tmp_path / "runs/demo/baseline/seed0"
    command = [*train(runs), *OPTIONS]
    both = start_ranks(command, [tmp_path / "both.out"] * 2)
    first_checkpoint(folder, *both)
    before = bytes_of(runs)
    others = start_ranks(command, [tmp_path / "others.out"] * 2)
    others.append(start(command, tmp_path / "one.out"))
    assert [finish(process) for process in others] == [1, 1, 1]
    for output in ("others.out", "one.out"):
        refused(folder, 1, (tmp_path / output).read_text())
    assert bytes_of(runs) == before
    for process in both:
        process.kill()
        finish(process)
    again = start_ranks(command, [tmp_path / "again.out"] * 2)
    assert [finish(process) for process in again] == [0, 0]
    assert (folder / "result.json").exists()


def test_ranks_of_several_machines_are_told_from_those_of_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert not several_machines()
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert not several_machines()
    for here, several in (("8", False), ("4", True)):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", here)
        assert several_machines() == several


def without_locks() -> None:
    """As where a folder is mounted without them."""

    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    fcntl.lockf = refuse


def test_without_locks_training_goes_on_with_a_warning(tmp_path: Path) -> None:
    code, said = said_by([*train(tmp_path), *SHORT], tmp_path / "out", without_locks)
    assert code == 0 and said.count("files cannot be locked there") == 1, said
    assert (tmp_path / "demo/baseline/seed0/result.json").exists()
