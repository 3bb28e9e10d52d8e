"""The training loop: train a method stage by stage, resuming from its newest checkpoint."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import AbstractContextManager, closing
from typing import Any

import torch

from batchformer.lab.engine.checkpoint import (
    explain_mismatch,
    load_newest_on_rank_zero,
    remove_outdated,
)
from batchformer.lab.engine.cuda_graph import new_stream
from batchformer.lab.engine.distributed.gradients import broadcast_state
from batchformer.lab.engine.distributed.sharding import shard
from batchformer.lab.engine.distributed.sync_norm import synchronise_norms
from batchformer.lab.engine.interrupt import StopRequest, stop_requests
from batchformer.lab.engine.log import NoLog, Progress, RunLog
from batchformer.lab.engine.method import Batches, Method
from batchformer.lab.engine.precision import matmul_precision
from batchformer.lab.engine.stage import BEST, Evaluate, Evaluation, Plan, Position, Stage
from batchformer.nn.exchange import is_rank_zero, world_size

__all__ = [
    "BEST",
    "Evaluate",
    "Evaluation",
    "Plan",
    "explain_mismatch",
    "fit",
    "own_stream",
    "training",
]


def fit(method: Method, batches: Batches, evaluate: Evaluate, plan: Plan) -> Evaluation:
    """Train to the end, resuming from the folder's newest checkpoint, and evaluate.

    An interrupted and resumed training equals an uninterrupted one: batches, learning rates and
    random draws are functions of the update, and the rest is in the checkpoint.

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
    """Enter a new stream, since a CUDA graph cannot be captured on the default one."""
    return new_stream(device)()


def training(
    method: Method,
    batches: Batches,
    evaluate: Evaluate,
    plan: Plan,
    request: StopRequest,
    alone: bool = True,
) -> Generator[Position, None, Evaluation]:
    """:func:`fit` as a generator: yields the position of the next update after each update.

    Args:
        request: asks the run to save and stop.
        alone: whether this run may draw a progress bar on the terminal.
    """
    run = _training(method, batches, evaluate, plan, request, alone)
    with closing(run):
        while True:
            # Restored between updates: an interleaved run may have another precision.
            with matmul_precision(plan.train.precision):
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
        _prepare_ranks(method, plan)
    log = RunLog(plan.folder, plan.wandb_project) if is_rank_zero() else NoLog(plan.folder)
    silent = not is_rank_zero()
    try:
        with Progress(plan.title, plan.train.updates, plan.quiet, alone, silent) as bar:
            found = load_newest_on_rank_zero(plan.folder / "checkpoints", bar.say)
            with explain_mismatch(plan.folder):
                first = int(found["counters"]["stage"]) if found else 0
            seconds = 0.0
            for index in range(first, len(method.stages)):
                run = Stage(method, batches, evaluate, plan, log, bar, index, found, seconds)
                if index == first:
                    remove_outdated(plan.folder, index, run.update, resumed=found is not None)
                    if plan.on_start is not None:
                        plan.on_start(method.stages[index], run.update)
                evaluation = yield from run.train(request)
                found, seconds = None, run.seconds
    finally:
        log.close()
    return evaluation


def _prepare_ranks(method: Method, plan: Plan) -> None:
    """Give all ranks the weights of rank 0; synchronise norms and shard as the settings ask."""
    if plan.train.sync_norm:
        synchronise_norms(method, plan.device)
    broadcast_state((*method.parameters(), *method.buffers()))
    if plan.train.parallel == "fsdp":
        shard(method, plan.train)
