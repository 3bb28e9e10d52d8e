"""What all tests share: a heap that is looked through once, and the starting of ranks."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

# A machine that does other things beside may take long over an example that is short.
settings.register_profile("suite", deadline=None)
settings.load_profile("suite")


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Leave what imports made out of every later look through the heap.

    Collecting imports every library, half a million objects. The garbage collector would visit
    them again and again, and so would ``attach``, which looks for optimizers built before.
    """
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Let the interpreter end as it would have."""
    gc.unfreeze()


@pytest.fixture(scope="session")
def run_ranks() -> Callable[[str, Path, int], None]:
    """Run a file as a script in one process for each rank, at once, and wait for all.

    The file is called with a folder, where it leaves what it got, and the number of its rank.
    """

    def run(file: str, folder: Path, ranks: int) -> None:
        command = [sys.executable, file, str(folder)]
        started = [
            subprocess.Popen([*command, str(rank)], stderr=subprocess.PIPE, text=True)
            for rank in range(ranks)
        ]
        try:
            errors = [process.communicate(timeout=120)[1] for process in started]
        finally:
            for process in started:  # those that wait for one that failed
                process.kill()
        assert not any(process.returncode for process in started), "\n".join(errors)

    return run
