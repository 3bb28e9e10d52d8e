"""What the training loop adds to a bare forward, backward and step.

Bare updates and updates by the loop alternate on one network: two networks, even equal ones, differ
by a few percent in speed, whatever runs them.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer

from batchformer.lab.bench.measure import BenchSettings, synchronize
from batchformer.lab.bench.step import OPTIM, RESNET32, TimedNetwork
from batchformer.lab.bench.table import Spread, Table
from batchformer.lab.config.training import ScheduleConfig, TrainConfig
from batchformer.lab.engine.cuda_graph import new_stream
from batchformer.lab.engine.interrupt import StopRequest
from batchformer.lab.engine.loop import training
from batchformer.lab.engine.method import Method
from batchformer.lab.engine.optimizer_step import matmul_precision
from batchformer.lab.engine.state import Evaluation, Plan

#: Updates between checkpoints, and between records: more often than any recipe writes them.
BLOCK, LOG_EVERY = 16, 8
BATCH = 32
BLOCKS, GPU_BLOCKS = 3, 10


@dataclasses.dataclass
class FixedBatches:
    """Batches made beforehand: this measures the loop, not the data."""

    batches: list[dict[str, Any]]
    per_epoch: int = 10**6

    def batch(self, step: int) -> dict[str, Any]:
        return dict(self.batches[step % len(self.batches)])


def measure(settings: BenchSettings, network: TimedNetwork = RESNET32, size: int = BATCH) -> Table:
    """Milliseconds of an update, bare and by the loop, and what the loop adds in per cent."""
    table = Table(
        "loop",
        f"What the loop adds: {network.title} with BatchFormer, batch {size}, eager",
        ("update", "ms", "the loop adds, %"),
        settings.environment(torch.float32),
        notes=[
            "Bare and looped updates alternate on one network; each is waited for",
            f"A block is {BLOCK} updates with {BLOCK // LOG_EVERY} records and a checkpoint "
            f"among them, compared with the {BLOCK} bare updates in between",
        ],
    )
    device = settings.device
    method = network.method(True, device).train()
    batches = network.batches(size, device)
    blocks = settings.repeats or (GPU_BLOCKS if settings.on_gpu else BLOCKS)
    in_fp32 = matmul_precision("fp32")  # as the loop computes it
    with new_stream(device)(), in_fp32, looped(method, batches, device) as by_loop:
        optimizer = method.optimizers(OPTIM)["main"]
        bare = _bare(method, optimizer, batches)
        for _ in range(LOG_EVERY):  # up to where the first record opens TensorBoard
            bare()
            by_loop()
        times = alternated(bare, by_loop, blocks * BLOCK, device)
    table.add("bare", Spread.ms(times["bare"]), None)
    added = _added(times["loop"], times["bare"])
    table.add("by the loop", Spread.ms(times["loop"]), Spread.of(added))
    table.notes.append(
        "The median of what the loop adds to {} single updates has the 95% interval {:+.2f}% to "
        "{:+.2f}%".format(len(added), *median_interval(added))
    )
    by_block = {name: _sums(found) for name, found in times.items()}
    table.add(
        "by the loop, mean of a block",
        Spread.ms([seconds / BLOCK for seconds in by_block["loop"]]),
        Spread.of(_added(by_block["loop"], by_block["bare"])),
    )
    return table


def alternated(
    bare: Callable[[], object], by_loop: Callable[[], object], count: int, device: torch.device
) -> dict[str, list[float]]:
    """Seconds of ``count`` single updates of each, in pairs whose order alternates."""
    times: dict[str, list[float]] = {"bare": [], "loop": []}
    pair = [("bare", bare), ("loop", by_loop)]
    synchronize(device)
    for number in range(count):
        for name, update in pair if number % 2 else reversed(pair):
            started = time.perf_counter()
            update()
            synchronize(device)
            times[name].append(time.perf_counter() - started)
    return times


@contextmanager
def looped(
    method: Method, batches: list[dict[str, Any]], device: torch.device
) -> Iterator[Callable[[], object]]:
    """A function that has the loop make one update of the method, as in a real run."""
    with tempfile.TemporaryDirectory() as folder:
        plan = Plan(
            optim=OPTIM,
            schedule=ScheduleConfig(),
            train=TrainConfig(
                batch_size=len(batches[0]["y"]),
                updates=10**6,
                log_every=LOG_EVERY,
                checkpoint_every=BLOCK,
                capture=False,
            ),
            seed=0,
            folder=Path(folder),
            device=device,
            quiet=True,
        )
        run = training(method, FixedBatches(batches), never_evaluated, plan, StopRequest())
        with closing(run):
            yield lambda: next(run)


def never_evaluated(*_: Any) -> Evaluation:
    """The evaluation of a run that is stopped before its end."""
    raise AssertionError("a run that is stopped before its end is not evaluated")


def _bare(
    method: Method, optimizer: Optimizer, batches: list[dict[str, Any]]
) -> Callable[[], None]:
    """Forward, backward and step, as a person would write them in four lines."""
    endless = itertools.cycle(batches)

    def update() -> None:
        loss = method.step(next(endless))["loss"]
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return update


def _added(loop: list[float], bare: list[float]) -> list[float]:
    return [100 * (a / b - 1) for a, b in zip(loop, bare, strict=True)]


def _sums(seconds: list[float]) -> list[float]:
    return [sum(seconds[start : start + BLOCK]) for start in range(0, len(seconds), BLOCK)]


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """A distribution-free 95% interval of the median.

    It is the k-th smallest and the k-th largest value, with the largest k that keeps the
    confidence; with too few values it is their whole range.

    >>> median_interval([float(i) for i in range(1, 21)])
    (6.0, 15.0)
    """
    ordered, n = sorted(values), len(values)
    outside, k = 0.0, 0
    while k < n // 2:
        outside += 2 * math.comb(n, k) / 2**n
        if outside > 1 - 0.95:
            break
        k += 1
    k = max(k, 1)
    return ordered[k - 1], ordered[n - k]
