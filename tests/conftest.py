"""What all tests share: a heap that is looked through once."""

from __future__ import annotations

import gc

import pytest


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
