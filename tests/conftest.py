"""What all tests share: a heap that is looked through once, and the starting of ranks."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from helpers import processes

if "OMP_NUM_THREADS" not in os.environ:
    # As in ``make test``: sums by two threads round differently from those by one, and some tests
    # compare runs in this process with runs in others, which get the variable.
    import torch

    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
# A machine that does other things beside may take long over an example that is short.
settings.register_profile("suite", deadline=None)
settings.load_profile("suite")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage among libraries and test files: all that they make stays."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


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


@pytest.fixture(scope="session", autouse=True)
def _unflushed() -> Iterator[None]:
    """Leave files to the system: a run flushes a dozen, and no test cuts the power.

    Processes that tests start do flush theirs.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@pytest.fixture(scope="session")
def run_ranks() -> Callable[[str, Path, int], None]:
    """Run a file as a script in one process for each rank; see `processes.run_ranks`."""
    return processes.run_ranks
