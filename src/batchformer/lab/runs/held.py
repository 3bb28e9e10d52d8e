"""Runs that no other process trains meanwhile."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from batchformer.lab.data.files.lock import KILLED_S, LOST_S, as_only_trainer
from batchformer.lab.engine.distributed.rank_zero import first_says
from batchformer.lab.runs.run import Run


@contextmanager
def held(runs: Sequence[Run]) -> Iterator[None]:
    """Have what is not finished for this process alone; of several ranks, the first holds it.

    Raises:
        Held: another process trains one of them; nothing was changed.
    """
    with ExitStack() as locks:
        first_says(lambda: _lock(runs, locks))
        yield


def _lock(runs: Sequence[Run], locks: ExitStack) -> None:
    waiting = {one.folder for one in runs if not one.finished}
    # A rank 0 that was on a machine now lost may still seem to hold them.
    patience = LOST_S if several_machines() else KILLED_S
    for folder in sorted(waiting):  # in one order: of several processes one gets all it asks for
        locks.enter_context(as_only_trainer(folder, patience))


def several_machines() -> bool:
    """Whether this process is one of ranks on several machines, as ``torchrun`` says."""
    whole = os.environ.get("WORLD_SIZE", "1")
    return int(whole) > int(os.environ.get("LOCAL_WORLD_SIZE", whole))
