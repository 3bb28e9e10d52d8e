"""The loop: train a method, update by update, from wherever it was left."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import AbstractContextManager, closing, nullcontext
from typing import Any

import torch

from batchformer.lab.engine.checkpoint import load_newest_of_first, of_this_training, remove_later
from batchformer.lab.engine.distributed.gradients import broadcast_state
from batchformer.lab.engine.distributed.sharding import shard
from batchformer.lab.engine.distributed.sync_norm import synchronise_norms
from batchformer.lab.engine.interrupt import StopRequest, stop_requests
from batchformer.lab.engine.log import NoLog, Progress, RunLog
from batchformer.lab.engine.method import Batches, Method
from batchformer.lab.engine.precision import products_in
from batchformer.lab.engine.stage import BEST, Evaluate, Evaluation, Plan, Position, Stage
from batchformer.nn.exchange import is_rank_zero, world_size

__all__ = [
    "BEST",
    "Evaluate",
    "Evaluation",
    "Plan",
    "fit",
    "of_this_training",
    "own_stream",
    "training",
]


def fit(method: Method, batches: Batches, evaluate: Evaluate, plan: Plan) -> Evaluation:
    """Train to the end, resuming from the folder's newest checkpoint, and evaluate.

    Interrupted and resumed equals uninterrupted: batches, learning rates and random draws are
    functions of the update, and the rest is in the checkpoint.

    Raises:
        Interrupted: SIGINT or SIGTERM came; the state is saved.
        DivergedError: a loss became NaN or infinite; the last good checkpoint is kept.
    """
    with stop_requests() as request, own_stream(plan.device):
        run = training(method, batches, evaluate, plan, request)
        while True:
            try:
                next(run)
            except StopIteration as end:
                evaluation: Evaluation = end.value
                return evaluation


def own_stream(device: torch.device) -> AbstractContextManager[Any]:
    """A stream for one run: graphs are not recorded on the default one."""
    if device.type != "cuda":
        return nullcontext()
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream(device))
    return torch.cuda.stream(stream)


def training(
    method: Method,
    batches: Batches,
    evaluate: Evaluate,
    plan: Plan,
    request: StopRequest,
    alone: bool = True,
) -> Generator[Position, None, Evaluation]:
    """:func:`fit` update by update: whoever drives it may do other things in between.

    After each update it yields the position of the next one.

    Args:
        request: asks the run to save and stop.
        alone: whether this run may have the terminal for itself.
    """
    run = _training(method, batches, evaluate, plan, request, alone)
    with closing(run):
        while True:
            # Left between updates: a run that trains beside this one may have another precision.
            with products_in(plan.train.precision):
                try:
                    position = next(run)
                except StopIteration as end:
                    evaluation: Evaluation = end.value
                    return evaluation
            yield position


def _training(
    method: Method,
    batches: Batches,
    evaluate: Evaluate,
    plan: Plan,
    request: StopRequest,
    alone: bool,
) -> Generator[Position, None, Evaluation]:
    torch.use_deterministic_algorithms(plan.train.deterministic)
    method.to(plan.device)
    if plan.train.precision == "fp64":
        method.double()
    if plan.train.channels_last:
        method.to(memory_format=torch.channels_last)
    if world_size() > 1:
        _begin_alike(method, plan)
    log = RunLog(plan.folder, plan.wandb_project) if is_rank_zero() else NoLog(plan.folder)
    silent = not is_rank_zero()
    try:
        with Progress(plan.title, plan.train.updates, plan.quiet, alone, silent) as bar:
            found = load_newest_of_first(plan.folder / "checkpoints", bar.say)
            with of_this_training(plan.folder):
                first = int(found["counters"]["stage"]) if found else 0
            seconds = 0.0
            for index in range(first, len(method.stages)):
                run = Stage(method, batches, evaluate, plan, log, bar, index, found, seconds)
                if index == first:
                    remove_later(plan.folder, index, run.update, resumed=found is not None)
                    if plan.on_start is not None:
                        plan.on_start(method.stages[index], run.update)
                evaluation = yield from run.train(request)
                found, seconds = None, run.seconds
    finally:
        log.close()
    return evaluation


def _begin_alike(method: Method, plan: Plan) -> None:
    """Several ranks begin with the weights of rank 0, and as the settings ask."""
    if plan.train.sync_norm:
        synchronise_norms(method, plan.device)
    broadcast_state((*method.parameters(), *method.buffers()))
    if plan.train.parallel == "fsdp":
        shard(method, plan.train)
