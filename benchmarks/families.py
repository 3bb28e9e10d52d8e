"""Every family of our kernels against ``torch.compile``: does it earn its place?

A layer with its kernels, without one family of them, without any, and compiled; each eagerly and
in a CUDA graph. Where the compiled layer without kernels is as fast in a graph as the layer with
them, the family can go.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from batchformer.kernels import disabled, for_graphs
from batchformer.lab.bench.layer import OURS, STOCK, TYPES, LayerPair
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
from batchformer.nn import attention, encoder

Size = tuple[int, int]
#: Samples and channels, with the types in which they are measured.
GPU_CASES: tuple[tuple[Size, tuple[str, ...]], ...] = (
    ((512, 64), ("bf16", "fp32")),
    ((4096, 64), ("bf16",)),
    ((1024, 2048), ("bf16",)),
    ((4096, 512), ("bf16",)),
    ((4096, 2048), ("bf16", "fp16", "fp32")),
    ((16384, 2048), ("bf16",)),
)
CPU_CASES: tuple[tuple[Size, tuple[str, ...]], ...] = (((64, 64), ("fp32",)),)
#: The question that decides on each family: its module and its name.
FAMILIES: dict[str, tuple[ModuleType, str]] = {
    "small layer": (encoder, "_fits_one_program"),
    "rows between products": (encoder, "_fusing_pays"),
    "attention": (attention, "_kernels_work"),
}
#: The first is what ratios are to.
COMPILED, WITH = "ours compiled, without kernels", "ours"
ROUNDS, BUDGET = 15, 1.0


def measure(
    settings: BenchSettings,
    cases: tuple[tuple[Size, tuple[str, ...]], ...] | None = None,
) -> Table:
    """Milliseconds of forward and backward by size, type and candidate."""
    cases = cases or (GPU_CASES if settings.on_gpu else CPU_CASES)
    table = Table(
        "families",
        "Families of kernels against torch.compile, one layer, forward and backward, 4 heads, "
        "dropout 0.5",
        (
            *("N", "C", "type", "layer", "eager ms", "speed-up over compiled"),
            *("captured ms", "captured speed-up over compiled", "peak GB"),
        ),
        settings.environment("by row"),
        notes=[
            f"Ratios are to the first line of a size: {COMPILED}. Candidates take turns",
            "A family that a layer of this size does not use has no line",
        ],
    )
    for size, types in cases:
        for name in types:
            with table.attempt("N {} x C {}, {}".format(*size, name)):
                _measure_case(table, settings, size, name)
            release_memory(settings.device)
    return table


def _measure_case(table: Table, settings: BenchSettings, size: Size, name: str) -> None:
    works = candidates(LayerPair(*size, settings.device, TYPES[name]))
    rounds = functools.partial(
        time_interleaved,
        repeats=settings.repeats,
        usual=ROUNDS,
        budget=BUDGET,
        failed=lambda key, error: table.note_failure(
            "{} at N {} x C {}, {}".format(key, *size, name), error
        ),
    )

    def timers(watch: type[Stopwatch]) -> Mapping[str, Timer]:
        return {key: watch(work, settings.device) for key, work in works.items()}

    found, captured = rounds(timers(Stopwatch)), dict[str, Timing]()
    if settings.on_gpu:
        captured = rounds(timers(GraphStopwatch))
    for key, timing in found.items():
        replayed = captured.get(key)
        first = key == COMPILED
        table.add(
            *(*size, name, key, timing.ms, None if first else timing.speed_up),
            None if replayed is None else replayed.ms,
            None if replayed is None or first else replayed.speed_up,
            peak_bytes(works[key], settings.device) / 1e9 if settings.on_gpu else None,
        )


def candidates(pair: LayerPair) -> dict[str, Work]:
    """Every way to compute the layer, by name, the compiled one without kernels first."""
    eager, compiled = pair.works(), pair.works(compiled=True)
    used = families_used(eager[OURS])
    found: dict[str, Work] = {COMPILED: _within(disabled, _compiled(pair, kernels=False))}
    if "attention" in used:
        found["ours compiled, attention by our operator"] = _compiled(pair, kernels=True)
    found[WITH] = eager[OURS]
    if "rows between products" in used:
        # Eager layers use this family from a larger size on: is that the right size?
        found["ours with the kernels of a graph"] = _within(for_graphs, eager[OURS])
    for family in used if len(used) > 1 else ():
        found[f"ours without {family}"] = _within(functools.partial(without, family), eager[OURS])
    found["ours without kernels"] = _within(disabled, eager[OURS])
    found["torch's"], found["torch's compiled"] = eager[STOCK], compiled[STOCK]
    return found


def _compiled(pair: LayerPair, kernels: bool) -> Work:
    def forward(x: Tensor) -> Tensor:
        # The compiler asks for kernels only while it traces. It guards on what is read here, so
        # that each answer has a graph of its own.
        if kernels not in (True, False):
            raise AssertionError
        mixed: Tensor = pair.ours(x)
        return mixed

    graph = torch.compile(forward, dynamic=False, fullgraph=True)
    return functools.partial(pair.step, graph, [pair.x, *pair.ours.parameters()])


def _within(context: Callable[[], Any], work: Work) -> Work:
    def run() -> object:
        with context():
            return work()

    return run


def families_used(work: Work) -> list[str]:
    """The families whose kernels a layer runs, as captured in a graph."""
    answers: dict[str, bool] = {}

    def noting(family: str, question: Callable[..., bool]) -> Callable[..., bool]:
        def ask(*given: Any) -> bool:
            answers[family] = question(*given)
            return answers[family]

        return ask

    with for_graphs(), ExitStack() as stack:
        for family, (module, name) in FAMILIES.items():
            replacement = noting(family, getattr(module, name))
            stack.enter_context(_replaced(module, name, replacement))
        work()
    return [family for family in FAMILIES if answers.get(family)]


@contextmanager
def without(family: str) -> Iterator[None]:
    """Within it, layers run without this family of kernels."""
    with _replaced(*FAMILIES[family], lambda *_: False):
        yield


@contextmanager
def _replaced(module: ModuleType, name: str, value: Callable[..., bool]) -> Iterator[None]:
    known = vars(module)
    before = known[name]
    known[name] = value
    try:
        yield
    finally:
        known[name] = before
