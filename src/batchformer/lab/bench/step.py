"""A training step with and without BatchFormer, in the ways the engine can run it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from batchformer.lab.bench.memory import release
from batchformer.lab.bench.settings import BenchSettings
from batchformer.lab.bench.spread import spread_of
from batchformer.lab.bench.subject import (
    RESNET32,
    RESNET50,
    Mode,
    Network,
    Subject,
    SubjectStopwatch,
)
from batchformer.lab.bench.table import Table
from batchformer.lab.bench.timing import Timer, Timing, measured
from batchformer.lab.config.training import TrainConfig
from batchformer.lab.engine.loop import own_stream

ROUNDS = 10
#: Seconds for the rounds of one network and batch size.
CPU_BUDGET, GPU_BUDGET = 8.0, 6.0

_half = functools.partial(TrainConfig, precision="bf16", channels_last=True)
EAGER = Mode("eager fp32", TrainConfig(capture=False))
HALF = Mode("eager bf16", _half(capture=False))
COMPILED = Mode("compiled bf16", _half(capture=False, compile=True))
RECORDED = Mode("recorded bf16", _half())
WITHOUT_KERNELS = Mode("recorded bf16, torch's kernels", _half(), kernels=False)

Case = tuple[Network, int, tuple[Mode, ...]]


def cases(on_gpu: bool, full: bool) -> list[Case]:
    """Network, batch size and modes, the reference first."""
    if not on_gpu:
        return [(RESNET32, 32, (EAGER,))]
    small = (EAGER, HALF, RECORDED, WITHOUT_KERNELS)
    found: list[Case] = [(RESNET32, 128, small)]
    if full:
        found.append((RESNET32, 512, (*small, COMPILED)))
    # Our convolutions are for the few channels of ResNet-32: nothing to disable in ResNet-50.
    return [*found, (RESNET50, 256, (EAGER, HALF, RECORDED))]


def measure(settings: BenchSettings, chosen: Sequence[Case] | None = None) -> Table:
    """Milliseconds a step and what BatchFormer adds, all modes of a network interleaved."""
    table = Table(
        "step",
        "A training step: forward, backward and optimizer",
        (
            "network",
            "batch",
            "mode",
            "without BatchFormer, ms",
            "with BatchFormer, ms",
            "samples/s",
            "speed-up over eager fp32",
            "BatchFormer's share, %",
        ),
        settings.environment("by mode"),
        notes=["Samples/s and speed-up are those with BatchFormer; its share is of that step"],
    )
    if settings.on_gpu:
        allowed = "may" if torch.backends.cudnn.allow_tf32 else "may not"
        table.notes.append(
            f"bf16 steps have channels-last images; convolutions in fp32 {allowed} use TF32"
        )
    for network, size, modes in chosen or cases(settings.on_gpu, settings.full):
        with table.attempt(f"{network.title} at {size}"), own_stream(settings.device):
            _one_case(table, settings, network, size, modes)
        release(settings.device)
    return table


def _one_case(
    table: Table, settings: BenchSettings, network: Network, size: int, modes: Sequence[Mode]
) -> None:
    def make(mode: Mode, with_it: bool, batches: Any) -> Subject:
        return Subject(network, mode, size, with_it, settings.device, batches)

    layouts = {mode.train.channels_last for mode in modes}
    batches = {last: network.batches(size, settings.device, last) for last in layouts}
    title = f"{network.title} at {size}"
    for mode, timing, plain in with_and_without(table, settings, title, modes, batches, make):
        table.add(
            network.title,
            size,
            mode.name,
            None if plain is None else plain.ms,
            timing.ms,
            timing.ms.through(lambda ms: 1000 * size / ms),
            None if mode is modes[0] else timing.speed_up,
            None if plain is None else spread_of(shares(timing, plain)),
        )


def with_and_without(
    table: Table,
    settings: BenchSettings,
    title: str,
    modes: Sequence[Mode],
    batches: Mapping[bool, Any],
    make: Callable[[Mode, bool, Any], Subject],
) -> Iterator[tuple[Mode, Timing, Timing | None]]:
    """Every mode with BatchFormer and, where it could be timed, without; all take turns.

    Args:
        table: is told what failed.
        settings: device and rounds.
        title: of the case, for the table's notes.
        modes: ways to run a step.
        batches: by whether images are channels-last.
        make: the subject of a mode, with BatchFormer or without, on batches.
    """
    timers: dict[str, Timer] = {}
    for mode in modes:
        for with_it in (True, False):
            own = batches[mode.train.channels_last]
            made = functools.partial(make, mode, with_it, own)
            timers[_key(mode, with_it)] = SubjectStopwatch(made, settings.device)
    found = measured(
        timers,
        settings.repeats,
        usual=ROUNDS,
        budget=GPU_BUDGET if settings.on_gpu else CPU_BUDGET,
        failed=lambda name, error: table.refuse(f"{title}, {name}", error),
    )
    for mode in modes:
        timing, plain = found.get(_key(mode, True)), found.get(_key(mode, False))
        if timing is not None:
            yield mode, timing, plain


def shares(timing: Timing, plain: Timing) -> list[float]:
    """What BatchFormer takes of a step in per cent, round by round."""
    pairs = zip(timing.seconds, plain.seconds, strict=True)
    return [100 * (both - alone) / both for both, alone in pairs]


def _key(mode: Mode, batchformer: bool) -> str:
    return f"{mode.name} {'with' if batchformer else 'without'} BatchFormer"
