"""One layer over N samples at each of L tokens, as inside a Vision Transformer: time and memory."""

from __future__ import annotations

from batchformer.lab.bench.layer import LayerPair
from batchformer.lab.bench.measure import (
    BenchSettings,
    GraphStopwatch,
    Stopwatch,
    release_memory,
)
from batchformer.lab.bench.table import Table

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
    memory = settings.memory
    columns = ("torch's ms", "ours ms", "speed-up", f"torch's {memory}", f"ours, {memory}")
    table = Table(
        "v2_layer",
        "One layer over N samples at each of L tokens, forward and backward, 4 heads, dropout 0.5",
        ("N", "L", "C", "mode", *columns),
        settings.environment("bf16 autocast" if settings.on_gpu else "float32"),
        notes=[
            "torch's is nn.TransformerEncoderLayer, whose sequence is the batch; ours is "
            "BatchFormer with the same weights. Both read (N, L, C) and run in turns",
            "captured: in a CUDA graph, without the host",
        ],
    )
    watches: dict[str, type[Stopwatch]] = {"eager": Stopwatch}
    if settings.on_gpu:
        watches["captured"] = GraphStopwatch
    for size in sizes:
        for mode, watch in watches.items():
            with table.attempt("N {} x L {} x C {}, {}".format(*size, mode)):
                pair = LayerPair(size, settings.device, settings.half)
                cells = pair.time_and_memory(settings, watch, usual=ROUNDS, budget=BUDGET)
                table.add(*size, mode, *cells)
            release_memory(settings.device)
    return table
