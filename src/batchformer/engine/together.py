"""Several runs side by side on one device: an update of each in turn.

On a GPU each has a stream of its own, so that what one run leaves idle another uses; on a CPU
nothing is gained, and nothing changes: every draw is a function of its run's seed and update.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from batchformer.engine.fit import Evaluation
from batchformer.engine.interrupt import Interrupted, StopRequest, stop_requests
from batchformer.engine.window import DivergedError

Training = Generator[None, None, Evaluation]


@dataclass(frozen=True)
class Job:
    """One run to be trained.

    Args:
        name: to know it by.
        start: begins the training, which a request asks to save and stop.
    """

    name: str
    start: Callable[[StopRequest], Training]


def train_together(
    jobs: Sequence[Job], device: torch.device
) -> Iterator[tuple[Job, Evaluation | DivergedError]]:
    """Train all jobs, giving each as it ends; one that diverges leaves the others alone.

    Raises:
        Interrupted: a signal came, after every run has saved its state.
    """
    interrupted: Interrupted | None = None
    with stop_requests() as request:
        running = [(job, job.start(request), _streams(device)) for job in jobs]
        while running:
            for entry in list(running):
                job, training, on_stream = entry
                ended: Evaluation | DivergedError | None = None
                try:
                    with on_stream():
                        next(training)
                    continue
                except StopIteration as end:
                    ended = end.value
                except DivergedError as error:
                    ended = error
                except Interrupted as stop:
                    interrupted = stop
                running.remove(entry)
                if ended is not None:
                    yield job, ended
    if interrupted is not None:
        raise interrupted


def _streams(device: torch.device) -> Callable[[], AbstractContextManager[Any]]:
    if device.type != "cuda":
        return nullcontext
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream(device))
    return lambda: torch.cuda.stream(stream)
