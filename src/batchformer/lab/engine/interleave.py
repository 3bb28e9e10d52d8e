"""Train several runs on one device by interleaving their updates.

On a GPU each run has its own stream, so runs fill the gaps that others leave. On a CPU nothing is
gained. Either way no result changes: every draw is a function of the run's seed and update.

Runs that share a feed take its batches at the same update, because a feed restarts its reader when
it is asked for an earlier update than before. Resumed runs may be at different updates; those that
are behind catch up first.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch

from batchformer.lab.engine.cuda_graph import new_stream
from batchformer.lab.engine.interrupt import Interrupted, StopRequest, stop_requests
from batchformer.lab.engine.log import DivergedError
from batchformer.lab.engine.method import Batches
from batchformer.lab.engine.stage import Evaluation, Position

Training = Generator[Position, None, Evaluation]


@dataclass(frozen=True)
class Job:
    """One run to train.

    Args:
        start: begins the training; the request asks it to save and stop.
        feed: where its batches come from, if other runs share it.
    """

    name: str
    start: Callable[[StopRequest], Training]
    feed: Batches | None = None


@dataclass(eq=False)
class _Running:
    """A run in progress; its position is None until its first update."""

    job: Job
    training: Training
    on_stream: Callable[[], AbstractContextManager[Any]]
    position: Position | None = None


def train_interleaved(
    jobs: Sequence[Job], device: torch.device
) -> Iterator[tuple[Job, Evaluation | DivergedError]]:
    """Train all jobs and yield each when it ends; one that diverges does not stop the others.

    Raises:
        Interrupted: a signal came; every run has saved its state.
    """
    interrupted: Interrupted | None = None
    with stop_requests() as request:
        running = [_Running(job, job.start(request), new_stream(device)) for job in jobs]
        while running:
            for one in list(running):
                if _is_ahead(one, running):
                    continue
                ended: Evaluation | DivergedError | None = None
                try:
                    with one.on_stream():
                        one.position = next(one.training)
                    continue
                except StopIteration as end:
                    ended = end.value
                except DivergedError as error:
                    ended = error
                except Interrupted as stop:
                    interrupted = stop
                running.remove(one)
                if ended is not None:
                    yield one.job, ended
    if interrupted is not None:
        raise interrupted


def _is_ahead(one: _Running, running: Sequence[_Running]) -> bool:
    """Whether a run must wait for another run that shares its feed and is behind."""
    if one.position is None or one.job.feed is None:
        return False
    sharing = [other for other in running if other.job.feed is one.job.feed]
    return any(other.position is None or other.position < one.position for other in sharing)
