"""Several runs on one GPU, each on its own stream, compared with one after the other."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import torch

from batchformer.lab.bench.measure import BenchSettings, Stopwatch, Timer, time_interleaved
from batchformer.lab.bench.step import OPTIM, RESNET32, TimedNetwork
from batchformer.lab.bench.table import Spread, Table
from batchformer.lab.config.training import ScheduleConfig, TrainConfig
from batchformer.lab.engine.cuda_graph import WARM_UP
from batchformer.lab.engine.interrupt import StopRequest
from batchformer.lab.engine.loop import Job, Training, train_interleaved, training
from batchformer.lab.engine.state import Evaluation, Plan
from benchmarks.loop import FixedBatches, never_evaluated

BATCH = 512
COUNTS = (1, 2, 4, 8)
UPDATES = 20  # updates of each run in one timing
ROUNDS, BUDGET = 9, 8.0


def measure(settings: BenchSettings) -> Table:
    """Milliseconds of a round, in which every run makes one captured update."""
    if not settings.on_gpu:
        raise RuntimeError(f"side_by_side needs a CUDA device, and this is {settings.device}")
    return compare(settings, COUNTS, BATCH)


def compare(
    settings: BenchSettings,
    counts: Sequence[int],
    size: int,
    network: TimedNetwork = RESNET32,
    updates: int = UPDATES,
) -> Table:
    """Time any numbers of runs; on a CPU, where nothing is gained, updates are eager."""
    train = TrainConfig(
        batch_size=size,
        updates=10**6,
        precision="bf16" if settings.on_gpu else "fp32",
        channels_last=True,
    )
    table = Table(
        "side_by_side",
        f"Runs side by side: {network.title} with BatchFormer, batch {size}",
        ("runs", "ms a round", "speed-up over one after the other"),
        settings.environment(torch.bfloat16 if settings.on_gpu else torch.float32),
        notes=["In a round every run makes one update; one after the other takes as many single"],
    )
    batches = FixedBatches(network.batches(size, settings.device, channels_last=True))
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        runs: list[Training] = []
        for number in range(max(counts)):
            plan = Plan(
                optim=OPTIM,
                schedule=ScheduleConfig(),
                train=train,
                seed=number,
                folder=Path(folder) / str(number),
                device=settings.device,
                title=f"run {number}",
                quiet=True,
            )
            method = network.method(True, settings.device)
            run = training(method, batches, never_evaluated, plan, StopRequest(), draw_bar=False)
            runs.append(stack.enter_context(closing(run)))
        advance = functools.partial(_advance, device=settings.device)
        advance(runs, WARM_UP + 1)  # until every run is captured
        timers: dict[str, Timer] = {}
        for count in counts:
            work = functools.partial(advance, runs[:count], updates)
            timers[str(count)] = Stopwatch(work, settings.device, calls=1)
        found = time_interleaved(timers, settings.repeats, usual=ROUNDS, budget=BUDGET)
    for count in counts:
        timing, more = found[str(count)], count / counts[0]
        ms = timing.ms.map(lambda ms: ms / updates)
        gain = Spread.ratio([more * alone for alone in timing.first], timing.seconds)
        table.add(count, ms, None if count == counts[0] else gain)
    return table


def _advance(runs: Sequence[Training], updates: int, device: torch.device) -> None:
    """Make this many updates of each run, in turn, as ``compare --together`` does."""
    jobs = [
        Job(str(number), functools.partial(_slice, run, updates)) for number, run in enumerate(runs)
    ]
    for _ in train_interleaved(jobs, device):
        pass
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _slice(run: Training, updates: int, request: StopRequest) -> Training:
    """Train a slice of a run as if it were the whole run."""
    for _ in range(updates):
        if request.signal_number:
            raise KeyboardInterrupt
        yield next(run)
    return Evaluation({})
