"""One encoder layer, forward and backward: torch's against ours, on every path."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, get_args

import torch
from torch import Tensor, nn

from batchformer.kernels.available import disabled, unsupported_reason
from batchformer.lab.bench.measure import (
    BenchSettings,
    GraphStopwatch,
    Stopwatch,
    Timer,
    Timing,
    Work,
    peak_bytes,
    release_memory,
    time_interleaved,
)
from batchformer.lab.bench.table import Table
from batchformer.nn import encoder
from batchformer.nn.attention import Path, attention, choose_path
from batchformer.nn.encoder import EncoderWeights, batch_former

HEADS, DROPOUT = 4, 0.5
#: In place of a path, where one set of kernels computes the whole layer.
WHOLE = "kernels of a whole layer"
STOCK = "torch's"

Size = tuple[int, int]
CPU_SIZES: tuple[Size, ...] = tuple((n, c) for c in (64, 512, 2048) for n in (32, 128, 512, 2048))
#: On a CPU, without ``full``: the N x C from which the other paths are left out, and the N x C from
#: which the whole size is, because a round takes many seconds.
OWN_PATH_ALONE, TOO_LARGE = 2048 * 512, 2048 * 2048
GPU_SIZES: tuple[Size, ...] = (
    (4096, 2048),
    (16384, 2048),
    (4096, 512),
    (1024, 2048),
    (256, 2048),
    (512, 64),
    (128, 64),
)
ROUNDS = 20
#: Seconds for the rounds of one size.
CPU_BUDGET, GPU_BUDGET = 0.8, 1.0


def measure(settings: BenchSettings, sizes: tuple[Size, ...] | None = None) -> Table:
    """Milliseconds of the layer by size and candidate; on a GPU also captured, and its memory."""
    if sizes is None:
        on_cpu = (s for s in CPU_SIZES if settings.full or math.prod(s) < TOO_LARGE)
        sizes = GPU_SIZES if settings.on_gpu else tuple(on_cpu)
    columns = ["N", "C", "layer", "ms", "speed-up over torch's"]
    if settings.on_gpu:
        columns += ["captured ms", "captured speed-up", "peak GB"]
    table = Table(
        "attention",
        f"One encoder layer, forward and backward, {HEADS} heads, dropout {DROPOUT}",
        tuple(columns),
        settings.environment(settings.layer_dtype),
        notes=[
            "The first line of a size is nn.TransformerEncoderLayer on (N, 1, C), run eagerly; "
            "then batch_former on the path it chooses, and on the other paths that can run",
        ],
    )
    if settings.on_gpu:
        table.notes.append(
            "Captured: calls in a CUDA graph, compared with torch's layer captured in the same way"
        )
    elif not settings.full:
        table.notes.append(f"The other paths are left out from N x C = {OWN_PATH_ALONE:,} on")
    for size in sizes:
        with table.attempt("N {} x C {}".format(*size)):
            _measure_size(table, settings, size)
        release_memory(settings.device)
    return table


def _measure_size(table: Table, settings: BenchSettings, size: Size) -> None:
    layer = Layer(*size, settings.device, settings.layer_dtype)
    ours = f"batch_former ({layer.chosen})"
    works: dict[str, Work] = {
        STOCK: functools.partial(layer.with_backward, layer.forward_stock),
        ours: functools.partial(layer.with_backward, layer.forward_ours),
    }
    every = settings.full or settings.on_gpu or math.prod(size) < OWN_PATH_ALONE
    for path in layer.others if every else ():
        forward = functools.partial(layer.forward_by, path)
        works[f"by {path}"] = functools.partial(layer.with_backward, forward)

    def note_failure(name: str, error: Exception) -> None:
        table.note_failure("{} at N {} x C {}".format(name, *size), error)

    timers: dict[str, Timer] = {n: Stopwatch(work, settings.device) for n, work in works.items()}
    budget = GPU_BUDGET if settings.on_gpu else CPU_BUDGET
    rounds = functools.partial(
        time_interleaved, repeats=settings.repeats, usual=ROUNDS, budget=budget, failed=note_failure
    )
    found = rounds(timers)
    captured: dict[str, Timing] = {}
    if settings.on_gpu:
        with table.attempt("The captured layer at N {} x C {}".format(*size)):
            captured = rounds({n: GraphStopwatch(works[n], settings.device) for n in (STOCK, ours)})
    for name, timing in found.items():
        cells = [timing.ms, None if name == STOCK else timing.speed_up]
        if not settings.on_gpu:
            table.add(*size, name, *cells)
            continue
        replayed = captured.get(name)
        table.add(
            *size,
            name,
            *cells,
            None if replayed is None else replayed.ms,
            None if replayed is None or name == STOCK else replayed.speed_up,
            peak_bytes(works[name], settings.device) / 1e9,
        )


class Layer:
    """Forward and backward of one layer, by torch's code and by ours, with the same weights."""

    def __init__(self, n: int, channels: int, device: torch.device, dtype: torch.dtype) -> None:
        layer = nn.TransformerEncoderLayer(channels, HEADS, channels, DROPOUT)
        self.stock = layer.to(device, dtype)
        draw = torch.Generator().manual_seed(0)
        x, gradient = torch.randn(2, n, channels, generator=draw).to(device, dtype)
        self.x, self.gradient = x.requires_grad_(), gradient
        self.given = [self.x, *self.stock.parameters()]
        self.width = channels // HEADS

    @functools.cached_property
    def chosen(self) -> str:
        """The path that batch_former takes here for this size, or WHOLE."""
        with torch.no_grad(), forced_path(None) as calls:
            self.forward_ours()
        if not calls:
            return WHOLE
        return choose_path(
            1,
            HEADS,
            len(self.x),
            self.width,
            device=self.x.device,
            dtype=self.x.dtype,
            dropout=DROPOUT,
            kernels=unsupported_reason(self.x) is None,
        )

    @property
    def others(self) -> list[Path]:
        """The other paths that can run here."""
        paths: tuple[Path, ...] = get_args(Path)
        kernels = unsupported_reason(self.x) is None and self.chosen != WHOLE
        runs = [path for path in paths if path != "triton" or kernels]
        return [path for path in runs if path != self.chosen]

    def forward_stock(self) -> Tensor:
        """As the paper's code calls it: the batch as one sequence, ``(N, 1, C)``."""
        mixed: Tensor = self.stock(self.x.unsqueeze(1))
        return mixed.squeeze(1)

    def forward_ours(self) -> Tensor:
        """The same by batch_former."""
        weights = [EncoderWeights.of(self.stock)]
        return batch_former(self.x, weights, heads=HEADS, dropout=DROPOUT)

    def forward_by(self, path: Path) -> Tensor:
        """The same by batch_former, on another path than it would choose."""
        with disabled() if self.chosen == WHOLE else nullcontext(), forced_path(path) as calls:
            mixed = self.forward_ours()
        if not calls:
            raise RuntimeError(f"batch_former chose no path here, so {path} cannot be forced")
        return mixed

    def with_backward(self, forward: Callable[[], Tensor]) -> tuple[Tensor, ...]:
        """The gradients of the input and of all twelve weights."""
        return torch.autograd.grad(forward(), self.given, self.gradient)


@contextmanager
def forced_path(path: Path | None) -> Iterator[list[Path | None]]:
    """Force encoder layers onto a path, if one is given; yields the list of their calls."""
    calls: list[Path | None] = []
    known = vars(encoder)
    before = known["attention"]

    def noted(*args: Any, **options: Any) -> Tensor:
        calls.append(path)
        return attention(*args, **options, path=path)

    known["attention"] = noted
    try:
        yield calls
    finally:
        known["attention"] = before
