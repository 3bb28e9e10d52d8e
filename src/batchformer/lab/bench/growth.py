"""Time and memory of one encoder layer as the batch grows."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from batchformer.lab.bench.layer import LayerPair
from batchformer.lab.bench.measure import BenchSettings, GraphStopwatch, Stopwatch, release_memory
from batchformer.lab.bench.table import Table

CHANNELS = 512
SMALLEST, LARGEST, LARGEST_IN_FULL, LARGEST_ON_GPU = 64, 2048, 4096, 16384
ROUNDS = 7
BUDGET = 0.8  # seconds for the rounds of one N


def measure(
    settings: BenchSettings, sizes: Sequence[int] | None = None, channels: int = CHANNELS
) -> Table:
    """Time and memory of torch's layer and of ours by N; then the exponents of their growth."""
    if sizes is None:
        largest = LARGEST_IN_FULL if settings.full else LARGEST
        largest = LARGEST_ON_GPU if settings.on_gpu else largest
        sizes = [SMALLEST << k for k in range(int(math.log2(largest // SMALLEST)) + 1)]
    memory = settings.memory
    table = Table(
        "growth",
        f"One encoder layer against N, C {channels}, 4 heads, dropout 0.5, forward and backward",
        ("N", "torch's ms", "ours, ms", "speed-up", f"torch's {memory}", f"ours, {memory}"),
        settings.environment("bf16 autocast" if settings.on_gpu else "float32"),
    )
    if settings.on_gpu:
        table.notes.append("Both are captured in CUDA graphs")
    for n in sizes:
        with table.attempt(f"N {n}"):
            pair = LayerPair((n, channels), settings.device, settings.half)
            # An eager call on a GPU takes as long as its kernel launches, whatever N is.
            watch = GraphStopwatch if settings.on_gpu else Stopwatch
            table.add(n, *pair.time_and_memory(settings, watch, usual=ROUNDS, budget=BUDGET))
        release_memory(settings.device)
    if len(table.rows) >= 4:
        upper = table.rows[len(table.rows) // 2 :]
        points = {i: [(row[0], _median(row[i])) for row in upper] for i in (1, 2, 4, 5)}
        exponents = {i: fitted_exponent(found) for i, found in points.items()}  # type: ignore[arg-type]
        table.add("exponent", exponents[1], exponents[2], None, exponents[4], exponents[5])
        table.notes.append(
            "The exponent is the slope of a least-squares line through the logarithms, for N from "
            f"{upper[0][0]} to {upper[-1][0]}"
        )
    return table


def fitted_exponent(points: Sequence[tuple[float, float]]) -> float:
    """The p of the power law ``y = a x^p`` that fits the logarithms of the points best.

    >>> round(fitted_exponent([(x, 3 * x**1.5) for x in (1.0, 2.0, 8.0)]), 6)
    1.5
    >>> round(fitted_exponent([(1.0, 1.0), (2.0, 8.0), (4.0, 4.0)]), 6)
    1.0
    """
    logs = torch.tensor(points, dtype=torch.float64).log()
    x, y = (logs - logs.mean(0)).unbind(1)
    return float((x @ y) / (x @ x))


def _median(cell: object) -> float:
    return float(getattr(cell, "median", cell))  # type: ignore[arg-type]
