"""One process at a time, by locks that the system takes back when a process ends, however it ends.

A lock is an empty file. Who leaves it removes it, and who takes it makes sure that it still has its
name, so that nobody holds a file that is gone. A process that is killed leaves the file, which is
then anybody's. A process holds a lock once, however often it asks for it.
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

#: Seconds in which a process that was killed lets go of what it held.
KILLED_S = 1.0
#: Seconds until a lock of a machine that died is known to be free.
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
    """Hold a lock; where the file system has none, say so once and go on.

    Going on is right there, for whoever has no other file system could do nothing otherwise, and
    what the lock prevents takes two commands that nobody meant to give.

    Args:
        lock: its file, which is made where it is not there, and so are folders above it; those
            that are empty at the end are removed.
        patience: seconds to wait while another process holds it.
        waiting: said on stderr, once, if it has to be waited for.
        refusal: what the error says.

    Returns:
        Whether it was taken by this call: not where this process holds it already, nor where there
        are no locks.

    Raises:
        Held: another process still holds it.
    """
    key = os.getpid(), os.path.realpath(lock)
    end = time.monotonic() + patience
    while (taken := _taken(key)) is None:
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
        _left(key)


def as_only_trainer(folder: Path, patience: float = KILLED_S) -> AbstractContextManager[bool]:
    """Hold the lock of a run, which lies beside its folder.

    Args:
        folder: of the run.
        patience: seconds to wait while another process trains it.

    Raises:
        Held: another process still trains it; nothing was changed.
    """
    busy = f"{folder} is being trained by another process"
    return locked(
        folder.with_name(f".{folder.name}.lock"),
        patience=patience,
        waiting=f"{busy}: waiting up to {patience:g} s." if patience > KILLED_S else "",
        refusal=f"{busy}, and nothing was changed here. Wait until that one has ended, and give "
        "the same command again, or choose another folder by --runs.",
    )


#: The process, since one that is forked inherits what is below but no lock; and the file.
Key = tuple[int, str]


@dataclass
class _Hold:
    """An open file with a lock on it, and how many blocks of this process rely on it.

    Args:
        handle: of the file.
        made: folders that were made for it, the deepest first.
        blocks: that have entered and not left.
    """

    handle: int
    made: list[Path]
    blocks: int = 1


_holds: dict[Key, _Hold] = {}
_guard = threading.Lock()
#: File systems of which it was said that they have no locks.
_without_locks: set[int] = set()


def _taken(key: Key) -> bool | None:
    """Take it, as :func:`holding` says; None if another process holds it."""
    with _guard:
        if hold := _holds.get(key):
            # Not opened again: closing any handle of the file would give up the lock.
            hold.blocks += 1
            return False
        lock = Path(key[1])
        handle, made = _opened(lock)
        locked = _locked(handle, lock)
        if locked is None or (locked and not _has_its_name(handle, lock)):
            os.close(handle)
            return None
        _holds[key] = _Hold(handle, made)
        return locked


def _opened(lock: Path) -> tuple[int, list[Path]]:
    """The file, open, and the folders that were made for it.

    Raises:
        OSError: the file, or a folder above it, cannot be made.
    """
    attempt = 0
    while True:
        attempt += 1
        made = [folder for folder in lock.parents if not folder.exists()]
        try:
            lock.parent.mkdir(parents=True, exist_ok=True)
            return os.open(lock, os.O_WRONLY | os.O_CREAT, 0o666), made
        except (FileNotFoundError, FileExistsError) as error:
            if any(folder.is_file() for folder in lock.parents):
                raise
            # Who held it may have removed its folders in between; not so many times in a row.
            if attempt == ATTEMPTS:
                raise FileNotFoundError(
                    f"The folder {lock.parent} cannot be made ({error.strerror}). Give another "
                    "one; that of runs is named by --runs."
                ) from error
            time.sleep(AGAIN_S)


def _left(key: Key) -> None:
    with _guard:
        hold, lock = _holds[key], Path(key[1])
        hold.blocks -= 1
        if hold.blocks or key[0] != os.getpid():  # a fork leaves what its parent holds
            return
        del _holds[key]
        with suppress(OSError):  # elsewhere than on POSIX an open file cannot be removed
            lock.unlink()
        os.close(hold.handle)
        with suppress(OSError):  # until one that is not empty
            for folder in hold.made:
                folder.rmdir()


def _has_its_name(handle: int, lock: Path) -> bool:
    """Whether an open file was not removed before it was locked."""
    try:
        return os.path.samestat(os.fstat(handle), lock.stat())
    except FileNotFoundError:
        return False


def _locked(handle: int, lock: Path) -> bool | None:
    """Lock an open file: None if another process has locked it, False where there are no locks."""
    try:
        import fcntl

        # Not flock: processes that read data are forks, would share it, and may live on.
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
            f"{lock.parent}: files cannot be locked there ({reason}). Going on: see to it "
            "that no other process works in the same folder.",
            file=sys.stderr,
            flush=True,
        )
    return False
