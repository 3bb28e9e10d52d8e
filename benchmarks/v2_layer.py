"""One layer over N samples at each of L tokens, as inside a Vision Transformer: time and memory."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor, nn

from batchformer.lab.bench.measure import (
    BenchSettings,
    Stopwatch,
    peak_bytes,
    release_memory,
    saved_bytes,
    time_interleaved,
)
from batchformer.lab.bench.table import Table
from batchformer.nn.module import BatchFormer

Size = tuple[int, int, int]
#: Samples, tokens and channels: DeiT-S on 224 pixels with growing batches.
GPU_SIZES: tuple[Size, ...] = ((64, 197, 384), (128, 197, 384), (256, 197, 384), (3, 850, 256))
#: On a CPU the largest would take minutes.
CPU_SIZES: tuple[Size, ...] = ((16, 197, 384), (64, 197, 384), (3, 850, 256))
ROUNDS, BUDGET = 7, 2.0


def measure(settings: BenchSettings, sizes: tuple[Size, ...] | None = None) -> Table:
    """Milliseconds and memory of forward and backward, by size."""
    if sizes is None:
        sizes = GPU_SIZES if settings.on_gpu else CPU_SIZES
    memory = "peak MB" if settings.on_gpu else "MB saved for backward"
    columns = ("torch's ms", "ours ms", "speed-up", f"torch's {memory}", f"ours, {memory}")
    table = Table(
        "v2_layer",
        "One layer over N samples at each of L tokens, forward and backward, 4 heads, dropout 0.5",
        ("N", "L", "C", *columns),
        settings.environment("bf16 autocast" if settings.on_gpu else "float32"),
        notes=[
            "torch's is nn.TransformerEncoderLayer, whose sequence is the batch; ours is "
            "BatchFormer with the same weights. Both read (N, L, C) and run eagerly, in turns"
        ],
    )
    for size in sizes:
        with table.attempt("N {} x L {} x C {}".format(*size)):
            pair = TokenLayers(*size, settings.device)
            works = {name: functools.partial(pair.step, f) for name, f in pair.forwards().items()}
            timers = {name: Stopwatch(work, settings.device) for name, work in works.items()}
            found = time_interleaved(timers, settings.repeats, usual=ROUNDS, budget=BUDGET)
            if settings.on_gpu:
                held = [peak_bytes(work, settings.device) for work in works.values()]
            else:
                forwards = (functools.partial(f, pair.x) for f in pair.forwards().values())
                held = [saved_bytes(f, [pair.x, *pair.weights()]) for f in forwards]
            stock, ours = found["torch's"], found["ours"]
            table.add(*size, stock.ms, ours.ms, ours.speed_up, *(part / 1e6 for part in held))
        release_memory(settings.device)
    return table


class TokenLayers:
    """Torch's layer and ours with the same weights, in training, on tokens ``(N, L, C)``."""

    def __init__(self, n: int, length: int, channels: int, device: torch.device) -> None:
        self.stock = nn.TransformerEncoderLayer(channels, 4, channels, 0.5).to(device)
        self.ours = BatchFormer(channels).to(device)
        self.ours.load_state_dict(self.stock.state_dict())
        draw = torch.Generator().manual_seed(0)
        x, self.gradient = torch.randn(2, n, length, channels, generator=draw).to(device)
        self.x = x.requires_grad_()

    def forwards(self) -> dict[str, Callable[[Tensor], Tensor]]:
        return {"torch's": self.stock, "ours": self.ours}

    def weights(self) -> list[Tensor]:
        return [*self.stock.parameters(), *self.ours.parameters()]

    def step(self, forward: Callable[[Tensor], Tensor]) -> None:
        """Forward and backward, under bf16 autocast on a GPU."""
        with torch.autocast(self.x.device.type, torch.bfloat16, enabled=self.x.is_cuda):
            mixed = forward(self.x)
        mixed.backward(self.gradient.to(mixed.dtype))
        for tensor in (self.x, *self.weights()):
            tensor.grad = None
