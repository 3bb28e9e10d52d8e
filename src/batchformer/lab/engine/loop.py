"""The training loop: train a method, resuming from its newest checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from typing import Any

import torch

from batchformer.lab.config.training import require
from batchformer.lab.engine.checkpoint import load_newest_on_rank_zero, remove_outdated
from batchformer.lab.engine.cuda_graph import new_stream
from batchformer.lab.engine.distributed.gradients import broadcast_state
from batchformer.lab.engine.distributed.rank_zero import max_over_ranks
from batchformer.lab.engine.distributed.sharding import shard
from batchformer.lab.engine.interrupt import Interrupted, StopRequest, stop_requests
from batchformer.lab.engine.log import DivergedError, NoLog, Progress, RunLog
from batchformer.lab.engine.method import Batches, Method
from batchformer.lab.engine.optimizer_step import matmul_precision
from batchformer.lab.engine.state import Evaluate, Evaluation, Plan, TrainingState
from batchformer.nn.exchange import is_rank_zero, world_size

#: Yields the number of the next update.
Training = Generator[int, None, Evaluation]


def training(
    method: Method,
    batches: Batches,
    evaluate: Evaluate,
    plan: Plan,
    request: StopRequest,
    draw_bar: bool = True,
) -> Training:
    """Train to the end, resuming from the folder's newest checkpoint, and evaluate.

    An interrupted and resumed training equals an uninterrupted one: batches, learning rates and
    random draws are functions of the update, and the rest is in the checkpoint.

    Args:
        request: asks the run to save and stop.
        draw_bar: whether this run may draw a progress bar on the terminal.

    Raises:
        Interrupted: a signal came; the state is saved.
        DivergedError: a loss or weight became NaN or infinite, or a score NaN; checkpoints are
            kept.
    """
    run = _training(method, batches, evaluate, plan, request, draw_bar)
    with closing(run):
        while True:
            # Restored between updates: an interleaved run may have another precision.
            with matmul_precision(plan.train.precision):
                try:
                    update = next(run)
                except StopIteration as end:
                    evaluation: Evaluation = end.value
                    return evaluation
            yield update


def _training(
    method: Method,
    batches: Batches,
    evaluate: Evaluate,
    plan: Plan,
    request: StopRequest,
    draw_bar: bool,
) -> Training:
    torch.use_deterministic_algorithms(plan.train.deterministic)
    method.to(plan.device)
    if plan.train.precision == "fp64":
        method.double()
    if plan.train.channels_last:
        method.to(memory_format=torch.channels_last)
    if world_size() > 1:
        _prepare_ranks(method, plan)
    log = RunLog(plan.folder, plan.wandb_project) if is_rank_zero() else NoLog(plan.folder)
    silent = not is_rank_zero()
    try:
        with Progress(plan.title, plan.train.updates, plan.quiet, draw_bar, silent) as bar:
            found = load_newest_on_rank_zero(plan.folder / "checkpoints", bar.say)
            run = TrainingState(method, batches, evaluate, plan, log, bar, found)
            remove_outdated(plan.folder, run.update, resumed=found is not None)
            if plan.on_start is not None:
                plan.on_start(run.update)
            return (yield from run.train(request))
    finally:
        log.close()


def _prepare_ranks(method: Method, plan: Plan) -> None:
    """Give all ranks the weights of rank 0; synchronise norms and shard as the settings ask."""
    if plan.train.sync_norm:
        from batchformer.lab.engine.distributed.sync_norm import synchronise_norms

        synchronise_norms(method, plan.device)
    broadcast_state((*method.parameters(), *method.buffers()))
    if plan.train.parallel == "fsdp":
        require(plan.swad is None, "hyper.swad sums whole weights; set train.parallel ddp")
        shard(method, plan.train)


# Several runs on one device, by interleaving their updates.
#
# On a GPU each run has its own stream, so runs fill the gaps that others leave. On a CPU nothing is
# gained. Either way no result changes: every draw is a function of the run's seed and update.
#
# Runs that share a feed take its batches at the same update, because a feed restarts its reader
# when it is asked for an earlier update than before. Resumed runs may be at different updates;
# those that are behind catch up first.


@dataclass(frozen=True)
class Job:
    """One run to train."""

    name: str
    # Begins the training; the request asks it to save and stop
    start: Callable[[StopRequest], Training]
    feed: Batches | None = None  # where its batches come from, if other runs share it


@dataclass(eq=False)
class _Running:
    """A run in progress, and its next update; None until the first is done."""

    job: Job
    training: Training
    on_stream: Callable[[], AbstractContextManager[Any]]
    update: int | None = None


def train_interleaved(
    jobs: Sequence[Job], device: torch.device
) -> Iterator[tuple[Job, Evaluation | DivergedError]]:
    """Train all jobs and yield each when it ends; one that diverges does not stop the others.

    Raises:
        Interrupted: a signal came; every run has saved its state, or has finished.
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
                        one.update = next(one.training)
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
    # A signal during the last evaluation must also stop the runs that a caller would train next.
    if interrupted is None and (number := max_over_ranks(request.signal_number or 0)):
        words = "Stopped after the runs in training had finished."
        interrupted = Interrupted(number, f"{words} The same command goes on from there.")
    if interrupted is not None:
        raise interrupted


def _is_ahead(one: _Running, running: Sequence[_Running]) -> bool:
    """Whether a run must wait for another run that shares its feed and is behind."""
    if one.update is None or one.job.feed is None:
        return False
    sharing = [other for other in running if other.job.feed is one.job.feed]
    return any(other.update is None or other.update < one.update for other in sharing)
