"""What a person who attaches pays: BatchFormer's layer against torch's, in every way to run it."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor, nn

from batchformer.lab.bench.measure import (
    BenchSettings,
    GraphStopwatch,
    Stopwatch,
    Timer,
    Work,
    release_memory,
    time_interleaved,
)
from batchformer.lab.bench.table import Table
from batchformer.nn.module import BatchFormer

Size = tuple[int, int]
#: Samples and channels. Those of common networks come first: ResNet-18 and -50, ViT-S and -B.
GPU_SIZES: tuple[Size, ...] = (
    *((256, 512), (256, 2048), (256, 384), (256, 768)),
    *((1024, 512), (1024, 2048), (4096, 512), (4096, 2048)),
    *((32, 64), (512, 64), (4096, 64), (32, 2048), (16384, 512), (16384, 2048)),
)
CPU_SIZES: tuple[Size, ...] = ((64, 512), (64, 2048), (256, 512), (256, 2048), (32, 64), (512, 64))
ROUNDS, BUDGET = 20, 1.0
STOCK, OURS = "torch's", "ours"


def measure(settings: BenchSettings, sizes: tuple[Size, ...] | None = None) -> Table:
    """Milliseconds of forward and backward by size and mode, and ours over torch's."""
    if sizes is None:
        sizes = GPU_SIZES if settings.on_gpu else CPU_SIZES
    dtype = "bf16 autocast" if settings.on_gpu else "float32"
    table = Table(
        "layer",
        "One layer as a plug-in user runs it, forward and backward, 4 heads, dropout 0.5",
        ("N", "C", "mode", "torch's ms", "ours ms", "speed-up"),
        settings.environment(dtype),
        notes=[
            "torch's is nn.TransformerEncoderLayer on (N, 1, C), ours is BatchFormer with the same "
            "weights. Each mode compares the two in turns",
            "compiled: by torch.compile. captured: in a CUDA graph, without the host",
        ],
    )
    if not settings.on_gpu and not settings.full:
        table.notes.append("torch.compile takes long on a CPU: --full measures it")
    for size in sizes:
        for mode in modes(settings):
            with table.attempt("N {} x C {}, {}".format(*size, mode)):
                pair = LayerPair(*size, settings.device, compiled="compiled" in mode)
                timers: dict[str, Timer] = {
                    name: (GraphStopwatch if "captured" in mode else Stopwatch)(
                        work, settings.device
                    )
                    for name, work in pair.works().items()
                }
                found = time_interleaved(timers, settings.repeats, usual=ROUNDS, budget=BUDGET)
                table.add(*size, mode, found[STOCK].ms, found[OURS].ms, found[OURS].speed_up)
            release_memory(settings.device)
    return table


def modes(settings: BenchSettings) -> tuple[str, ...]:
    """The ways to run a layer that are measured here."""
    if settings.on_gpu:
        return "eager", "compiled", "captured", "compiled and captured"
    return ("eager", "compiled") if settings.full else ("eager",)


class LayerPair:
    """Torch's layer and ours with the same weights, in training, on the same samples."""

    def __init__(self, n: int, channels: int, device: torch.device, compiled: bool) -> None:
        self.stock = nn.TransformerEncoderLayer(channels, 4, channels, 0.5).to(device)
        self.ours = BatchFormer(channels).to(device)
        self.ours.load_state_dict(self.stock.state_dict())
        draw = torch.Generator().manual_seed(0)
        x, self.gradient = torch.randn(2, n, channels, generator=draw).to(device)
        self.x, self.compiled = x.requires_grad_(), compiled

    def works(self) -> dict[str, Work]:
        """Forward and backward of each, by name."""
        pairs = ((STOCK, self.forward_stock, self.stock), (OURS, self.ours, self.ours))
        return {
            name: functools.partial(
                self.step,
                torch.compile(forward) if self.compiled else forward,
                [self.x, *module.parameters()],
            )
            for name, forward, module in pairs
        }

    def forward_stock(self, x: Tensor) -> Tensor:
        """As the paper's code calls it: the batch as one sequence, ``(N, 1, C)``."""
        mixed: Tensor = self.stock(x.unsqueeze(1))
        return mixed.squeeze(1)

    def step(self, forward: Callable[[Tensor], Tensor], given: list[Tensor]) -> tuple[Tensor, ...]:
        """The gradients of the samples and of all weights."""
        cuda = self.x.is_cuda
        with torch.autocast(self.x.device.type, torch.bfloat16, enabled=cuda, cache_enabled=False):
            mixed = forward(self.x)
        return torch.autograd.grad(mixed, given, self.gradient.to(mixed.dtype))
