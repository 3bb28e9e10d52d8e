"""One process at a time: a lock is held until its process ends, and others wait or are refused."""

from __future__ import annotations

import errno
import fcntl
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import IO

import pytest

from batchformer.lab.data.files import lock as module
from batchformer.lab.data.files.lock import LockHeldError, as_only_trainer, locked

FORK = multiprocessing.get_context("fork")  # quicker than a new interpreter


@pytest.fixture(autouse=True)
def _try_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EVERY_S", 0.01)


def hold(lock: Path, seconds: float, held: Event, log: Path) -> None:
    with locked(lock, waiting="waiting", patience=60), log.open("a", buffering=1) as lines:
        lines.write("in\n")
        held.set()
        time.sleep(seconds)
        lines.write("out\n")


@contextmanager
def held_by_another(lock: Path, seconds: float = 60) -> Iterator[BaseProcess]:
    """A process that holds a lock, from when it does."""
    held = FORK.Event()
    other = FORK.Process(target=hold, args=(lock, seconds, held, Path(os.devnull)))
    other.start()
    assert held.wait(30)
    try:
        yield other
    finally:
        other.kill()
        other.join()


def in_a_fork(work: Callable[[], bool]) -> bool:
    child = os.fork()
    if child == 0:
        os._exit(0 if work() else 1)
    return os.waitpid(child, 0)[1] == 0


def seen_by_another(lock: Path) -> str:
    """Whether another process finds it held or free."""

    def is_refused() -> bool:
        try:
            with locked(lock, patience=0):
                return False
        except LockHeldError:
            return True

    return "held" if in_a_fork(is_refused) else "free"


def test_a_lock_lasts_as_long_as_its_process(tmp_path: Path) -> None:
    lock = tmp_path / "new/folder/.lock"
    with held_by_another(lock) as other:
        with (
            pytest.raises(LockHeldError, match=rf"Another process holds {lock}\."),
            locked(lock, patience=0),
        ):
            pass
        other.kill()
        other.join()
        with locked(lock, patience=0) as taken:
            assert taken and seen_by_another(lock) == "held"
    assert seen_by_another(lock) == "free"


def test_whoever_waits_says_so_once_and_goes_on(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder, started = tmp_path / "seed0", time.monotonic()
    with held_by_another(tmp_path / ".seed0.lock", 0.2), as_only_trainer(folder, 30) as taken:
        assert taken and time.monotonic() - started > 0.15
    assert capfd.readouterr().err == (
        f"{folder} is being trained by another process: waiting up to 30 s.\n"
    )
    with as_only_trainer(folder, 30):
        pass
    assert capfd.readouterr().err == ""


def test_of_many_that_begin_together_one_holds_it_at_a_time(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    lock, log = tmp_path / ".lock", tmp_path / "log"
    held = FORK.Event()
    others = [FORK.Process(target=hold, args=(lock, 0.05, held, log)) for _ in range(4)]
    for other in others:
        other.start()
    for other in others:
        other.join(30)
    assert log.read_text() == "in\nout\n" * 4
    assert {*capfd.readouterr().err.split()} <= {"waiting"}
    assert [other.exitcode for other in others] == [0] * 4


def test_a_process_that_holds_it_already_goes_on_and_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lock = tmp_path / "a" / ".lock"
    with locked(lock):
        with locked(Path("a/.lock"), patience=0) as again:  # by another spelling
            assert not again
        assert seen_by_another(lock) == "held"
        with pytest.raises(ZeroDivisionError), locked(lock):
            _ = 1 / 0
        assert seen_by_another(lock) == "held"
    assert seen_by_another(lock) == "free"


def test_a_lock_leaves_nothing_behind_but_what_was_there_or_is_used(tmp_path: Path) -> None:
    used, given = tmp_path / "a/b/c", tmp_path / "given"
    given.mkdir()
    with locked(used / ".lock"), locked(tmp_path / "x/y/.lock"), locked(given / ".lock"):
        (tmp_path / "a" / "file").touch()
    assert {path.name for path in tmp_path.rglob("*")} == {"a", "file", "given"}
    with held_by_another(given / ".lock"):
        pass  # and is killed: what it leaves is anybody's
    with locked(given / ".lock", patience=0) as taken:
        assert taken
    assert not list(given.iterdir())


def test_who_holds_a_lock_that_is_gone_does_not_take_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one before removes it between the opening and the locking of the next."""
    lock, lockf, gone = tmp_path / ".lock", fcntl.lockf, []

    def removed_meanwhile(handle: int, kind: int) -> None:
        lockf(handle, kind)
        if not gone:
            gone.append(lock.stat().st_ino)
            lock.unlink()

    monkeypatch.setattr(fcntl, "lockf", removed_meanwhile)
    with locked(lock, patience=5) as taken:
        assert taken and gone and seen_by_another(lock) == "held"


def test_a_fork_does_not_hold_what_its_parent_does(tmp_path: Path) -> None:
    lock = tmp_path / ".lock"

    with locked(lock):
        assert seen_by_another(lock) == "held"
        assert seen_by_another(lock) == "held"  # what the fork closed was its own
    assert seen_by_another(lock) == "free"
    block = locked(lock)
    block.__enter__()
    assert in_a_fork(lambda: not block.__exit__(None, None, None)) and lock.exists()
    assert seen_by_another(lock) == "held"
    block.__exit__(None, None, None)
    assert not lock.exists()


def test_the_lock_of_a_run_lies_beside_it_and_its_refusal_says_what_to_do(tmp_path: Path) -> None:
    folder = tmp_path / "demo/baseline/seed3"
    with (
        held_by_another(folder.parent / ".seed3.lock"),
        pytest.raises(LockHeldError) as caught,
        as_only_trainer(folder, patience=0.1),
    ):
        pass
    for words in (str(folder), "trained by another process", "nothing was changed", "--runs"):
        assert words in str(caught.value)
    assert not folder.exists()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, None])
def test_without_locks_it_goes_on_with_one_warning(
    number: int | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def refuse(file: IO[str], kind: int) -> None:
        raise OSError(number, os.strerror(number or 0))

    if number is None:  # a system without the module
        monkeypatch.setitem(sys.modules, "fcntl", None)
    else:
        monkeypatch.setattr(fcntl, "lockf", refuse)
    monkeypatch.setattr(module, "_without_locks", set())
    for name in ("a.lock", "b.lock"):
        with locked(tmp_path / name, patience=0) as taken:
            assert not taken
    seen = capsys.readouterr().err
    reason = "no such locks" if number is None else os.strerror(number)
    assert seen.count("\n") == 1 and str(tmp_path) in seen and reason in seen
    assert "no other process" in seen


def test_a_lock_that_may_not_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "lock").mkdir()
    with pytest.raises(OSError, match=r"lock'") as caught, locked(tmp_path / "lock"):
        pass
    assert caught.value.filename == str(tmp_path / "lock")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a place where none can be made")
def test_a_folder_that_cannot_be_made_is_not_taken_for_a_process_that_trains() -> None:
    with (
        pytest.raises(FileNotFoundError, match=r"/proc/nope.* cannot be made .*--runs"),
        as_only_trainer(Path("/proc/nope/demo/seed0")),
    ):
        pass
