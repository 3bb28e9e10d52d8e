"""Processes forked from one that has loaded torch, so that each starts in a moment."""

from __future__ import annotations

import gc
import multiprocessing
import os
import runpy
import sys
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

#: Loaded once by the process that all others are forked from; what is not installed is left out.
LOADED = [
    "torch._dynamo",
    "torch.nn.parallel",
    "hypothesis",
    "pytest",
    "batchformer.lab.runs.compare",
    "batchformer.lab.methods.erm",
    "sklearn.datasets",
    "timm",
    "torch.utils.tensorboard",
    "torchmetrics",
    "tyro",
]
#: Seconds after which at least one more of several processes has to end.
PATIENCE = 300


def fork(function: Callable[..., None], *arguments: Any) -> BaseProcess:
    """Start a function of a module in a process with this one's environment and folder."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(LOADED)
    given = (dict(os.environ), Path.cwd(), function, arguments)
    process = context.Process(target=_call, args=given)
    process.start()
    return process


def _call(
    environment: dict[str, str],
    folder: Path,
    function: Callable[..., None],
    arguments: tuple[Any, ...],
) -> None:
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    gc.freeze()  # or whoever looks through the heap, as `attach` does, would visit all libraries
    function(*arguments)


def write_to(file: Path, *streams: int) -> None:
    """Let this process write what it prints, to stdout (1) or stderr (2), to a file."""
    handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in streams:
        os.dup2(handle, stream)


def script(file: Path, output: Path, *arguments: str) -> None:
    """Be a script, which prints to the files ``OUTPUT.out`` and ``OUTPUT.err``."""
    write_to(output.with_suffix(".out"), 1)
    write_to(output.with_suffix(".err"), 2)
    sys.argv = [str(file), *arguments]
    runpy.run_path(str(file), run_name="__main__")


def wait_for(started: Sequence[BaseProcess], outputs: Sequence[Path]) -> None:
    """Wait for scripts that wait for one another; fails as soon as one has failed."""
    running = {process.sentinel: process for process in started}
    try:
        while running and not any(process.exitcode for process in started):
            ended = wait(list(running), PATIENCE)
            assert ended, f"{len(running)} of {len(started)} processes do not end"
            for sentinel in ended:
                running.pop(sentinel).join()  # type: ignore[call-overload]
    finally:
        for process in started:
            process.kill()
    said = "\n".join(output.with_suffix(".err").read_text() for output in outputs)
    assert not any(process.exitcode for process in started), said


def run_ranks(file: str, folder: Path, ranks: int) -> None:
    """Run a file as a script in one process for each rank, at once, and wait for all.

    The file is called with a folder, where it leaves what it got, and the number of its rank.
    """
    outputs = [folder / f"rank{rank}" for rank in range(ranks)]
    wait_for(
        [
            fork(script, Path(file), output, str(folder), str(rank))
            for rank, output in enumerate(outputs)
        ],
        outputs,
    )
