"""BatchFormer's share of a training step of an attached model, as an ordinary loop runs it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from batchformer.lab.bench.measure import (
    BenchSettings,
    Stopwatch,
    Timer,
    release_memory,
    time_interleaved,
)
from batchformer.lab.bench.step import shares
from batchformer.lab.bench.table import Spread, Table
from batchformer.lab.models.build import build_model
from batchformer.nn.streams import match
from batchformer.plug.attach import attach

ROUNDS, BUDGET = 10, 6.0
#: Seconds of a timing on a GPU: many steps, because the host runs ahead of it.
MIN_SECONDS_ON_GPU = 0.5


@dataclass(frozen=True)
class Case:
    """A network that the library builds, its batch, and where BatchFormer stands in it."""

    title: str
    name: str
    batch: int
    side: int = 224
    classes: int = 1000
    places: tuple[str, ...] | None = None  # names of modules; None attaches before the classifier

    def build(self, attached: bool, device: torch.device) -> nn.Module:
        """The model in training mode, on the device."""
        torch.manual_seed(0)
        model: nn.Module = build_model(self.name, self.classes).train()
        if attached:
            x = torch.randn(2, 3, self.side, self.side)
            at = None if self.places is None else list(self.places)
            attach(model, at, example=x, verbose=False)
        return model.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


BLOCKS = tuple(f"blocks.{index}" for index in range(12))
GPU_CASES = (
    Case("ResNet-50", "resnet50", 256),
    Case("ViT-S", "vit_small_patch16_224", 256),
    Case("ViT-S, 12 places", "vit_small_patch16_224", 256, places=BLOCKS),
)
CPU_CASES = (Case("ResNet-32", "resnet32", 16, 32, 10),)


def measure(settings: BenchSettings, cases: Sequence[Case] | None = None) -> Table:
    """Milliseconds of a step with and without BatchFormer, eager and compiled."""
    table = Table(
        "attached",
        "A training step of an attached model: forward, backward, fused SGD",
        ("network", "batch", "mode", "plain ms", "attached ms", "BatchFormer's share, %"),
        settings.environment("bf16 autocast" if settings.on_gpu else "float32"),
        notes=["The plain and the attached model take turns. The share is of the attached step"],
    )
    for case in cases or (GPU_CASES if settings.on_gpu else CPU_CASES):
        for mode in ("eager", "compiled"):
            with table.attempt(f"{case.title} at {case.batch}, {mode}"):
                _measure_case(table, settings, case, compiled=mode == "compiled")
            release_memory(settings.device)
    return table


def _measure_case(table: Table, settings: BenchSettings, case: Case, compiled: bool) -> None:
    torch.compiler.reset()
    seconds = MIN_SECONDS_ON_GPU if settings.on_gpu else 0.0
    timers: dict[str, Timer] = {
        name: Stopwatch(
            step(case, name == "attached", settings.device, compiled), settings.device, seconds
        )
        for name in ("plain", "attached")
    }
    found = time_interleaved(timers, settings.repeats, usual=ROUNDS, budget=BUDGET)
    plain, both = found["plain"], found["attached"]
    table.add(
        *(case.title, case.batch, "compiled" if compiled else "eager", plain.ms, both.ms),
        Spread.of(shares(both, plain)),
    )


def step(case: Case, attached: bool, device: torch.device, compiled: bool) -> Callable[[], None]:
    """One step of an ordinary loop, on the same random images each time."""
    model = case.build(attached, device)
    # Torch's default makes many small launches: compiled steps on a GPU would wait for the host.
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)
    shape = (case.batch, 3, case.side, case.side)
    x = torch.randn(shape, device=device).contiguous(memory_format=torch.channels_last)
    y = torch.randint(0, case.classes, (case.batch,), device=device)
    forward = torch.compile(model, dynamic=False) if compiled else model

    def run() -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            logits = forward(x)
            loss = F.cross_entropy(logits, match(logits, y) if attached else y)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()

    return run
