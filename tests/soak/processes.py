"""Commands in processes that can be killed, forked from one that has loaded torch already."""

from __future__ import annotations

import io
import itertools
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from unittest.mock import patch

from batchformer.lab.engine import checkpoint
from batchformer.plug import files

#: Where inside the write of a checkpoint a process can be made to die.
PLACES = ("half written", "written", "flushed", "renamed")
#: Loaded once, so that a command takes a part of a second to begin and not ten.
_LOADED = [
    "soak.processes",
    "batchformer.lab.runs.compare",
    "batchformer.lab.methods.erm",
    "sklearn.datasets",
    "timm",
    "torch.utils.tensorboard",
    "torchmetrics",
    "tyro",
]

Prepare = Callable[[], None]


def start(arguments: Sequence[str], output: Path, prepare: Prepare | None = None) -> BaseProcess:
    """Begin ``batchformer ARGUMENTS`` in a process of its own.

    Args:
        arguments: of the command line.
        output: file that gets what it prints, both streams.
        prepare: called in the process before the command.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_LOADED)
    process = context.Process(target=_command, args=(list(arguments), output, prepare))
    process.start()
    return process


def finish(process: BaseProcess, seconds: float = 300) -> int:
    """Its exit code; minus the number of the signal that ended it.

    Raises:
        TimeoutError: it goes on for longer, and was killed.
    """
    process.join(seconds)
    if process.exitcode is None:
        process.kill()
        process.join()
        raise TimeoutError(f"a command has not ended after {seconds} s")
    return process.exitcode


def die_in_write(place: str, nth: int) -> None:
    """Have this process killed inside its n-th write of a checkpoint.

    Args:
        place: one of `PLACES`: half of the bytes are in the partial file, all of them, they are on
            the disk, or the file has its name but the folder is not flushed.
        nth: counted from 1.
    """
    whole, writes = checkpoint.write_atomically, itertools.count(1)

    def write(path: Path, content: bytes) -> None:
        if path.suffix == ".pt" and next(writes) == nth:
            _set_trap(place)
        whole(path, content)

    patch.object(checkpoint, "write_atomically", write).start()


def limit_files(size: int) -> None:
    """Let this process write no file of more bytes."""
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def _command(arguments: list[str], output: Path, prepare: Prepare | None) -> None:
    import torch

    from batchformer.cli import main as cli

    handle = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(handle, stream)
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
    """A file that is given half of what is written to it, and then no more."""

    def write(self, content: object) -> int:
        assert isinstance(content, bytes)
        super().write(content[: len(content) // 2])
        _die()
        return 0


def _die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)
