"""File locks that let one process work at a time; the system frees them when a process ends.

A lock is an empty file. Leaving the lock removes the file, and taking it checks that the file still
has its name, so that nobody holds a file that is gone. A killed process leaves the file unlocked,
and the next process can take it. A process may take a lock again that it holds already.
"""

from __future__ import annotations

import errno
import math
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

#: Seconds within which the system frees the lock of a killed process.
KILLED_S = 1.0
#: Seconds until the lock of a machine that died is free.
LOST_S = 180.0
#: Seconds between two attempts.
EVERY_S = 0.5
#: Attempts to make the folders of a lock, and seconds between them.
ATTEMPTS, AGAIN_S = 20, 0.01


class LockHeldError(BlockingIOError):
    """Another process holds a lock."""


@contextmanager
def locked(
    lock: Path, *, patience: float = math.inf, waiting: str = "", refusal: str = ""
) -> Iterator[bool]:
    """Hold a lock. On a file system without locks, warn once and continue unlocked.

    Refusing would block such file systems, and the lock only prevents accidental double starts. The
    file of the lock and the folders above it are made if needed; folders that were made and are
    empty at the end are removed. If another process still holds the lock after `patience` seconds,
    a LockHeldError with the message `refusal` is raised. `waiting` is printed on stderr, once,
    before waiting.

    Returns whether this call took the lock: False if this process holds it already, or if there are
    no locks.
    """
    key = os.getpid(), os.path.realpath(lock)
    end = time.monotonic() + patience
    while (taken := _acquire(key)) is None:
        left = end - time.monotonic()
        if left <= 0:
            raise LockHeldError(refusal or f"Another process holds {lock}.")
        if waiting:
            print(waiting, file=sys.stderr, flush=True)
            waiting = ""
        time.sleep(min(EVERY_S, left))
    try:
        yield taken
    finally:
        _release(key)


def as_only_trainer(folder: Path, patience: float = KILLED_S) -> AbstractContextManager[bool]:
    """Hold the lock of a run, whose file lies beside the run's folder, or raise a LockHeldError."""
    busy = f"{folder} is being trained by another process"
    return locked(
        folder.with_name(f".{folder.name}.lock"),
        patience=patience,
        waiting=f"{busy}: waiting up to {patience:g} s." if patience > KILLED_S else "",
        refusal=f"{busy}, and nothing was changed here. Wait until it has ended and give "
        "the same command again, or choose another folder with --runs.",
    )


#: Process id and file: a forked process inherits `_holds`, but no lock.
Key = tuple[int, str]


@dataclass
class _Hold:
    """An open, locked file, and how many `with` blocks of this process rely on it."""

    handle: int
    made: list[Path]  # folders that were made for it, the deepest first
    blocks: int = 1  # entered and not yet left


_holds: dict[Key, _Hold] = {}
_guard = threading.Lock()
#: File systems that were reported to have no locks.
_without_locks: set[int] = set()


def _acquire(key: Key) -> bool | None:
    """Take a lock, as :func:`locked` says; None if another process holds it."""
    with _guard:
        if hold := _holds.get(key):
            # Not opened again: closing any handle of the file would give up the lock.
            hold.blocks += 1
            return False
        lock = Path(key[1])
        handle, made = _open(lock)
        taken = _lock_file(handle, lock)
        if taken is None or (taken and not _still_named(handle, lock)):
            os.close(handle)
            return None
        _holds[key] = _Hold(handle, made)
        return taken


def _open(lock: Path) -> tuple[int, list[Path]]:
    """The open file, and the folders that were made for it; an OSError if it cannot be made."""
    for _ in range(ATTEMPTS):
        made = [folder for folder in lock.parents if not folder.exists()]
        try:
            lock.parent.mkdir(parents=True, exist_ok=True)
            return os.open(lock, os.O_WRONLY | os.O_CREAT, 0o666), made
        except (FileNotFoundError, FileExistsError) as error:
            if any(folder.is_file() for folder in lock.parents):
                raise
            # The last holder may have removed its folders in between, but not ATTEMPTS times.
            reason = error.strerror
            time.sleep(AGAIN_S)
    raise FileNotFoundError(
        f"The folder {lock.parent} cannot be made ({reason}). Give another one; --runs names the "
        "folder of runs."
    )


def _release(key: Key) -> None:
    """Leave one block; the last one frees the lock and removes what was made for it."""
    with _guard:
        hold, lock = _holds[key], Path(key[1])
        hold.blocks -= 1
        if hold.blocks or key[0] != os.getpid():  # a fork does not free its parent's lock
            return
        del _holds[key]
        with suppress(OSError):  # only POSIX can remove an open file
            lock.unlink()
        os.close(hold.handle)
        with suppress(OSError):  # stop at the first that is not empty
            for folder in hold.made:
                folder.rmdir()


def _still_named(handle: int, lock: Path) -> bool:
    """Whether the open file is still the one of this name, and was not removed meanwhile."""
    try:
        return os.path.samestat(os.fstat(handle), lock.stat())
    except FileNotFoundError:
        return False


def _lock_file(handle: int, lock: Path) -> bool | None:
    """Lock an open file: None if another process has locked it, False if there are no locks."""
    try:
        import fcntl

        # Not flock: worker processes are forks, which would share the lock and may outlive us.
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except ModuleNotFoundError:
        reason = "this system has no such locks"
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            return None
        reason = error.strerror or str(error)
    else:
        return True
    device = os.fstat(handle).st_dev
    if device not in _without_locks:
        _without_locks.add(device)
        print(
            f"{lock.parent}: files cannot be locked there ({reason}). Continuing: make sure that "
            "no other process works in the same folder.",
            file=sys.stderr,
            flush=True,
        )
    return False
