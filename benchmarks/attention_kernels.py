"""Our attention kernels against ``torch.compile``: do they earn their lines?

A layer with the kernels, without them, and compiled with and without them; each eagerly and in a
CUDA graph. Where the compiled layer without kernels is as fast and as small as the one with them,
they can go.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from batchformer.kernels import disabled
from batchformer.lab.bench.layer import OURS, STOCK, TYPES, LayerPair
from batchformer.lab.bench.measure import (
    BenchSettings,
    GraphStopwatch,
    Work,
    peak_bytes,
    release_memory,
    time_works,
)
from batchformer.lab.bench.table import Cell, Table

#: Samples and channels, with the types in which they are measured.
Cases = tuple[tuple[tuple[int, int], tuple[str, ...]], ...]
GPU_CASES: Cases = (
    ((2048, 2048), ("bf16",)),
    ((4096, 2048), ("bf16", "fp16", "fp32")),
    ((16384, 2048), ("bf16",)),
)
CPU_CASES: Cases = (((64, 64), ("fp32",)),)
COMPILED = "ours compiled, without kernels"  # ratios are to this one
ROUNDS, BUDGET = 15, 1.0


def measure(settings: BenchSettings, cases: Cases | None = None) -> Table:
    """Milliseconds of forward and backward by size, type and candidate."""
    cases = cases or (GPU_CASES if settings.on_gpu else CPU_CASES)
    table = Table(
        "attention_kernels",
        "Attention kernels against torch.compile, one layer, forward and backward, 4 heads, "
        "dropout 0.5",
        (
            *("N", "C", "type", "layer", "eager ms", "speed-up over compiled"),
            *("captured ms", "captured speed-up over compiled", "peak GB"),
        ),
        settings.environment("by row"),
        notes=[f"Ratios are to the first line of a size: {COMPILED}. Candidates take turns"],
    )
    for size, types in cases:
        for name in types:
            with table.attempt("N {} x C {}, {}".format(*size, name)):
                _measure_case(table, settings, size, name)
            release_memory(settings.device)
    return table


def _measure_case(table: Table, settings: BenchSettings, size: tuple[int, int], name: str) -> None:
    works = candidates(LayerPair(size, settings.device, TYPES[name]))
    add_rows(table, settings, (*size, name), works)


def add_rows(
    table: Table, settings: BenchSettings, case: tuple[Cell, ...], works: dict[str, Work]
) -> None:
    """A row for each candidate: eager, captured, and memory. Ratios are to the first."""

    def failed(key: str, error: Exception) -> None:
        table.note_failure(f"{key} at {' '.join(map(str, case))}", error)

    timed = functools.partial(
        time_works, works, settings, usual=ROUNDS, budget=BUDGET, failed=failed
    )
    found = timed()
    captured = timed(watch=GraphStopwatch) if settings.on_gpu else {}
    first = next(iter(works))
    for key, timing in found.items():
        replayed = captured.get(key)
        table.add(
            *(*case, key, timing.ms, None if key == first else timing.speed_up),
            None if replayed is None else replayed.ms,
            None if replayed is None or key == first else replayed.speed_up,
            peak_bytes(works[key], settings.device) / 1e9 if settings.on_gpu else None,
        )


def candidates(pair: LayerPair) -> dict[str, Work]:
    """Every way to compute the layer, by name, the compiled one without kernels first."""
    eager, compiled = pair.works(), pair.works(compiled=True)
    return {
        COMPILED: within(disabled, _compiled(pair, kernels=False)),
        "ours compiled, attention by our operator": _compiled(pair, kernels=True),
        "ours": eager[OURS],
        "ours without kernels": within(disabled, eager[OURS]),
        "torch's": eager[STOCK],
        "torch's compiled": compiled[STOCK],
    }


def _compiled(pair: LayerPair, kernels: bool) -> Work:
    def forward(x: Tensor) -> Tensor:
        # The compiler asks for kernels only while it traces. It guards on `kernels`, which is read
        # here, so that each value has a graph of its own.
        if kernels not in (True, False):
            raise AssertionError
        mixed: Tensor = pair.ours(x)
        return mixed

    graph = torch.compile(forward, dynamic=False, fullgraph=True)
    return functools.partial(pair.step, graph, [pair.x, *pair.ours.parameters()])


def within(context: Callable[[], Any], work: Work) -> Work:
    """The work inside a context."""

    def run() -> object:
        with context():
            return work()

    return run
