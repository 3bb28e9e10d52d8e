"""Commands in processes that can be killed, forked from one that has already loaded torch."""

from __future__ import annotations

import io
import itertools
import os
import signal
import sys
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from unittest.mock import patch

from batchformer.insight import files
from batchformer.lab.engine import checkpoint
from helpers.processes import fork, write_to

#: Where inside the write of a checkpoint a process can be made to die: half of the bytes are in the
#: partial file, all of them are, they are on the disk, or the file has its final name.
PLACES = ("half written", "written", "flushed", "renamed")
Prepare = Callable[[], None]


def start(arguments: Sequence[str], output: Path, prepare: Prepare | None = None) -> BaseProcess:
    """Start ``batchformer ARGUMENTS``, which prints to a file, in a process that is prepared."""
    return fork(_command, list(arguments), output, prepare)


def finish(process: BaseProcess, seconds: float = 300) -> int:
    """Wait for a process; gives its exit code, or minus the number of the signal that ended it."""
    process.join(seconds)
    if process.exitcode is None:
        process.kill()
        process.join()
        raise TimeoutError(f"a command has not ended after {seconds} s")
    return process.exitcode


def die_in_write(place: str, nth: int) -> None:
    """Kill this process at one of `PLACES` inside its n-th write of a checkpoint."""
    whole, writes = checkpoint.write_atomically, itertools.count(1)

    def write(path: Path, content: bytes) -> None:
        if path.suffix == ".pt" and next(writes) == nth:
            _set_trap(place)
        whole(path, content)

    patch.object(checkpoint, "write_atomically", write).start()


def limit_files(size: int) -> None:
    """Limit the size of files that this process writes, in bytes."""
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def _command(arguments: list[str], output: Path, prepare: Prepare | None) -> None:
    import torch

    from batchformer.cli import main as cli

    write_to(output, 1, 2)
    torch.set_num_threads(1)
    sys.argv = ["batchformer", *arguments]
    if prepare is not None:
        prepare()
    cli.main(arguments)


def _set_trap(place: str) -> None:
    if place == "half written":
        patch.object(Path, "open", lambda path, mode: _Half(path, mode)).start()
        return
    within: dict[str, tuple[object, str]] = {
        "written": (os, "fsync"),
        "flushed": (Path, "replace"),
        "renamed": (files, "_sync_folder"),
    }
    patch.object(*within[place], _die).start()


class _Half(io.FileIO):
    """A file that takes half of what is written to it; then the process dies."""

    def write(self, content: object) -> int:
        assert isinstance(content, bytes)
        super().write(content[: len(content) // 2])
        _die()
        return 0


def _die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)
