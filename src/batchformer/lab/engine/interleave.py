"""Several runs side by side on one device: an update of each in turn.

On a GPU each has a stream of its own, so that what one run leaves idle another uses; on a CPU
nothing is gained, and nothing changes: every draw is a function of its run's seed and update.

Runs that share a feed take its batches at the same update: a feed restarts its
reader if it is asked for an earlier update than before. Runs that were resumed may be at different
updates; those that are behind catch up first."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from batchformer.lab.engine.interrupt import Interrupted, StopRequest, stop_requests
from batchformer.lab.engine.log import DivergedError
from batchformer.lab.engine.loop import Evaluation
from batchformer.lab.engine.method import Batches
from batchformer.lab.engine.stage import Position

Training = Generator[Position, None, Evaluation]


@dataclass(frozen=True)
class Job:
    """One run to be trained.

    Args:
        name: to know it by.
        start: begins the training, which a request asks to save and stop.
        feed: where its batches come from, if other runs take theirs from it too.
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


def train_together(
    jobs: Sequence[Job], device: torch.device
) -> Iterator[tuple[Job, Evaluation | DivergedError]]:
    """Train all jobs, giving each as it ends; one that diverges leaves the others alone.

    Raises:
        Interrupted: a signal came, after every run has saved its state.
    """
    interrupted: Interrupted | None = None
    with stop_requests() as request:
        running = [_Running(job, job.start(request), _streams(device)) for job in jobs]
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
    """Whether a run has to wait for another that takes the same batches and is behind."""
    if one.position is None or one.job.feed is None:
        return False
    sharing = [other for other in running if other.job.feed is one.job.feed]
    return any(other.position is None or other.position < one.position for other in sharing)


def _streams(device: torch.device) -> Callable[[], AbstractContextManager[Any]]:
    if device.type != "cuda":
        return nullcontext
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream(device))
    return lambda: torch.cuda.stream(stream)
