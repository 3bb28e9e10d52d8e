"""What the loop adds to the bare forward, backward and step."""

from __future__ import annotations

import dataclasses
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from batchformer.data.images import ImageSplit
from batchformer.data.transforms import cifar_test
from batchformer.engine.config import OptimConfig, ScheduleConfig, TrainConfig
from batchformer.engine.fit import Evaluation, Plan, fit
from batchformer.engine.method import Method
from batchformer.methods import build_method
from batchformer.methods.config import ModuleConfig
from batchformer.models.build import build_model
from batchformer.randomness import generator

UPDATES = 24  # a checkpoint and three log records among them, more than any recipe writes
BATCH = 32


@dataclasses.dataclass
class Fixed:
    """Batches made beforehand: the benchmark is of the loop, not of the data."""

    batches: list[dict[str, Any]]
    per_epoch: int

    def batch(self, step: int) -> dict[str, Any]:
        return dict(self.batches[step % len(self.batches)])


def main(repeats: int, to: Path | None = None) -> None:
    """Print, and perhaps save, interleaved medians of loop and bare computation."""
    result = measure(repeats)
    print(
        f"ResNet-32 + BatchFormer, batch {BATCH}, CPU, {result['threads']} threads, medians of "
        f"{repeats} interleaved repeats of {UPDATES} updates:\n"
        f"  bare  {result['bare_ms']:.1f} ms an update\n"
        f"  loop  {result['loop_ms']:.1f} ms an update\n"
        f"  the loop adds {result['overhead_percent']:+.1f}% "
        f"(middle half of paired ratios {result['low_percent']:+.1f}% to "
        f"{result['high_percent']:+.1f}%)"
    )
    if to is not None:
        to.write_text(json.dumps(result, indent=2) + "\n")


def measure(repeats: int, batch_size: int = BATCH) -> dict[str, float]:
    """Milliseconds an update by the loop and without it, and their ratio."""
    draw = generator(0, "augmentation")
    images = ImageSplit(
        torch.randint(0, 256, (batch_size * 4, 3, 32, 32), generator=draw, dtype=torch.uint8),
        torch.randint(0, 100, (batch_size * 4,), generator=draw),
    )
    normalise = cifar_test()
    starts = range(0, len(images), batch_size)
    parts = [slice(start, start + batch_size) for start in starts]
    batches = [{"x": normalise(images.x[part]), "y": images.y[part]} for part in parts]
    times: dict[str, list[float]] = {"bare": [], "loop": []}
    for repeat in range(repeats + 1):
        pair = [("bare", _bare), ("loop", _loop)]
        for name, timed in pair if repeat % 2 else reversed(pair):  # neither always comes first
            seconds = timed(_method(), batches)
            if repeat:  # the first pass warms caches and allocators up
                times[name].append(1000 * seconds / UPDATES)
    ratios = sorted(100 * (a / b - 1) for a, b in zip(times["loop"], times["bare"], strict=True))
    quarter = len(ratios) // 4
    return {
        "bare_ms": statistics.median(times["bare"]),
        "loop_ms": statistics.median(times["loop"]),
        "overhead_percent": statistics.median(ratios),
        "low_percent": ratios[quarter],
        "high_percent": ratios[-1 - quarter],
        "threads": torch.get_num_threads(),
    }


def _method() -> Method:
    torch.manual_seed(0)
    return build_method(
        "balanced_softmax",
        network=build_model("resnet32", 100),
        module=ModuleConfig(),
        seed=0,
        class_counts=torch.arange(100, 0, -1),
    )


def _bare(method: Method, batches: list[dict[str, Any]]) -> float:
    """Forward, backward and step, as a person would write them in four lines."""
    optimizer = method.optimizers(OptimConfig())["main"]
    method.train()
    started = time.perf_counter()
    for update in range(UPDATES):
        loss = method.step(batches[update % len(batches)])["loss"]
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return time.perf_counter() - started


def _loop(method: Method, batches: list[dict[str, Any]]) -> float:
    """The same updates by the loop, timed from the first update to the last."""
    marks: list[float] = []

    def evaluate(*_: Any) -> Evaluation:
        marks.append(time.perf_counter())
        return Evaluation({"all": 0.0})

    begin_epoch = method.begin_epoch

    def note(epoch: int) -> None:
        marks.append(time.perf_counter())
        begin_epoch(epoch)

    method.__dict__["begin_epoch"] = note
    with tempfile.TemporaryDirectory() as folder:
        plan = Plan(
            optim=OptimConfig(),
            schedule=ScheduleConfig(),
            train=TrainConfig(batch_size=BATCH, updates=UPDATES, log_every=max(UPDATES // 3, 1)),
            seed=0,
            folder=Path(folder),
            device=torch.device("cpu"),
            quiet=True,
        )
        fit(method, Fixed(batches, per_epoch=10**6), evaluate, plan)
    return marks[-1] - marks[0]
