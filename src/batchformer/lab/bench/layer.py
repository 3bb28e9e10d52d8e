"""BatchFormer's layer against torch's: eager, compiled, captured, and compiled and captured."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor, nn

from batchformer.lab.bench.measure import (
    BenchSettings,
    GraphStopwatch,
    Stopwatch,
    Work,
    peak_bytes,
    release_memory,
    saved_bytes,
    time_works,
)
from batchformer.lab.bench.table import Cell, Table
from batchformer.nn.module import BatchFormer

Size = tuple[int, int]
#: Samples and channels. Those of common networks come first: ResNet-18 and -50, ViT-S.
GPU_SIZES: tuple[Size, ...] = (
    *((256, 512), (256, 2048), (256, 384)),
    *((1024, 2048), (4096, 512), (4096, 2048), (512, 64), (16384, 2048)),
)
#: Further sizes, measured with ``full``.
MORE_GPU_SIZES: tuple[Size, ...] = (
    *((256, 768), (1024, 512), (32, 64), (4096, 64), (32, 2048), (16384, 512)),
)
CPU_SIZES: tuple[Size, ...] = ((64, 512), (64, 2048), (256, 512), (256, 2048), (32, 64), (512, 64))
MORE_CPU_SIZES: tuple[Size, ...] = ((2048, 64), (1024, 512), (32, 2048))
#: The type of autocast by name; None means float32 throughout.
TYPES: dict[str, torch.dtype | None] = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": None}
ROUNDS, BUDGET = 20, 1.0
STOCK, OURS = "torch's", "ours"


def measure(settings: BenchSettings, sizes: tuple[Size, ...] | None = None) -> Table:
    """Milliseconds of forward and backward by size, type and mode, and ours over torch's."""
    if sizes is None:
        sizes = GPU_SIZES if settings.on_gpu else CPU_SIZES
        if settings.full:
            sizes += MORE_GPU_SIZES if settings.on_gpu else MORE_CPU_SIZES
    types = tuple(TYPES) if settings.full else ("bf16",)
    table = Table(
        "layer",
        "One layer as a plug-in user runs it, forward and backward, 4 heads, dropout 0.5",
        ("N", "C", "type", "mode", "torch's ms", "ours ms", "speed-up"),
        settings.environment("by row"),
        notes=[
            "torch's is nn.TransformerEncoderLayer on (N, 1, C), ours is BatchFormer with the same "
            "weights. Each mode compares the two in turns",
            "compiled: by torch.compile. captured: in a CUDA graph, without the host",
        ],
    )
    if not settings.on_gpu and not settings.full:
        table.notes.append("torch.compile takes long on a CPU: --full measures it")
    for name in types if settings.on_gpu else ("fp32",):
        for size in sizes:
            _measure_size(table, settings, size, name)
            release_memory(settings.device)
    return table


def _measure_size(table: Table, settings: BenchSettings, size: Size, name: str) -> None:
    pair = LayerPair(size, settings.device, TYPES[name])
    works: dict[bool, dict[str, Work]] = {}
    for mode in modes(settings):
        compiled = "compiled" in mode
        with table.attempt("N {} x C {}, {}, {}".format(*size, name, mode)):
            if compiled not in works:
                works[compiled] = pair.works(compiled)
            watch = GraphStopwatch if "captured" in mode else Stopwatch
            found = time_works(works[compiled], settings, usual=ROUNDS, budget=BUDGET, watch=watch)
            stock, ours = found[STOCK], found[OURS]
            table.add(*size, name, mode, stock.ms, ours.ms, ours.speed_up)


def modes(settings: BenchSettings) -> tuple[str, ...]:
    """The ways to run a layer that are measured here."""
    if settings.on_gpu:
        return "eager", "compiled", "captured", "compiled and captured"
    return ("eager", "compiled") if settings.full else ("eager",)


class LayerPair:
    """Torch's layer and ours with the same weights, in training, on the same samples.

    Args:
        shape: (N, C), or (N, L, C) for a layer over the samples at each of L tokens.
        autocast: type of autocast; None means float32 throughout.
    """

    def __init__(
        self, shape: tuple[int, ...], device: torch.device, autocast: torch.dtype | None = None
    ) -> None:
        channels = shape[-1]
        self.stock = nn.TransformerEncoderLayer(channels, 4, channels, 0.5).to(device)
        self.ours = BatchFormer(channels).to(device)
        self.ours.load_state_dict(self.stock.state_dict())
        draw = torch.Generator().manual_seed(0)
        x, self.gradient = torch.randn(2, *shape, generator=draw).to(device)
        self.x, self.autocast = x.requires_grad_(), autocast

    def works(self, compiled: bool = False) -> dict[str, Work]:
        """Forward and backward of torch's layer and of ours, by name."""
        forwards: dict[str, Callable[[Tensor], Tensor]] = {
            STOCK: self.forward_stock,
            OURS: self.ours,
        }
        if compiled:
            # What was compiled before counts against the compiler's limit on recompilations,
            # beyond which it runs code eagerly without a word.
            torch.compiler.reset()
            compile_ = functools.partial(torch.compile, dynamic=False, fullgraph=True)
            forwards = {name: compile_(forward) for name, forward in forwards.items()}
        return {
            name: functools.partial(self.step, forward, self._given(name))
            for name, forward in forwards.items()
        }

    def forward_stock(self, x: Tensor) -> Tensor:
        """Torch's layer as the paper's code calls it: the batch is the sequence, ``(N, L, C)``."""
        mixed: Tensor = self.stock(x.unsqueeze(1) if x.ndim == 2 else x)
        return mixed.view_as(x)

    def step(self, forward: Callable[[Tensor], Tensor], given: list[Tensor]) -> tuple[Tensor, ...]:
        """The gradients of the samples and of all weights."""
        kind, enabled = self.autocast or torch.float32, self.autocast is not None
        with torch.autocast(self.x.device.type, kind, enabled=enabled, cache_enabled=False):
            mixed = forward(self.x)
        return torch.autograd.grad(mixed, given, self.gradient.to(mixed.dtype))

    def time_and_memory(
        self, settings: BenchSettings, watch: type[Stopwatch], *, usual: int, budget: float
    ) -> tuple[Cell, ...]:
        """Milliseconds of torch's and of ours, the speed-up, and the memory of both in MB."""
        works = self.works()
        found = time_works(works, settings, usual=usual, budget=budget, watch=watch)
        if settings.on_gpu:
            held = [peak_bytes(work, settings.device) for work in works.values()]
        else:
            held = [
                saved_bytes(lambda: self.forward_stock(self.x), self._given(STOCK)),
                saved_bytes(lambda: self.ours(self.x), self._given(OURS)),
            ]
        ours = found[OURS]
        return found[STOCK].ms, ours.ms, ours.speed_up, *(size / 1e6 for size in held)

    def _given(self, name: str) -> list[Tensor]:
        return [self.x, *(self.stock if name == STOCK else self.ours).parameters()]
