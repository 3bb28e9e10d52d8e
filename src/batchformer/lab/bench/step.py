"""A training step with and without BatchFormer, in each way the engine can run it."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from batchformer.kernels import available
from batchformer.lab.bench.measure import (
    BenchSettings,
    Stopwatch,
    Timer,
    Timing,
    release_memory,
    time_interleaved,
)
from batchformer.lab.bench.table import Spread, Table
from batchformer.lab.config.methods import ModuleConfig
from batchformer.lab.config.training import OptimConfig, TrainConfig
from batchformer.lab.data.transforms import IMAGENET, cifar_test
from batchformer.lab.engine.cuda_graph import WARM_UP, Captured, Eager, new_stream
from batchformer.lab.engine.method import Method
from batchformer.lab.engine.optimizer_step import OptimizerStep
from batchformer.lab.methods import build_method
from batchformer.lab.models.build import build_model
from batchformer.nn.randomness import generator, seed_for

#: A small rate, so that random labels do not drive the weights out of range.
OPTIM = OptimConfig(lr=0.01)
#: Seconds of a timing on a GPU: many updates, because the host runs ahead of it.
MIN_SECONDS_ON_GPU = 0.05
BATCHES = 4  # batches that a training cycles through
ROUNDS = 10
CPU_BUDGET, GPU_BUDGET = 8.0, 6.0  # seconds for the rounds of one network and batch size


@dataclass(frozen=True)
class TimedNetwork:
    """A network to train, and the images that it is trained on."""

    title: str
    name: str
    classes: int
    side: int
    optim: ClassVar[OptimConfig] = OPTIM

    def method(self, batchformer: bool, device: torch.device) -> Method:
        """Balanced Softmax with or without BatchFormer, on the device."""
        torch.manual_seed(0)
        return build_method(
            "balanced_softmax",
            network=build_model(self.name, self.classes),
            module=ModuleConfig(enabled=batchformer),
            seed=0,
            class_counts=torch.arange(self.classes, 0, -1),
        ).to(device)

    def batches(
        self, size: int, device: torch.device, channels_last: bool = False
    ) -> list[dict[str, Any]]:
        """Random images, normalised, with random labels."""
        normalise = cifar_test() if self.side <= 32 else IMAGENET
        layout = torch.channels_last if channels_last else torch.contiguous_format
        draw = generator(0, "augmentation")
        made = []
        for _ in range(BATCHES):
            shape = (size, 3, self.side, self.side)
            images = torch.randint(0, 256, shape, generator=draw, dtype=torch.uint8)
            x = normalise(images.to(device)).contiguous(memory_format=layout)
            y = torch.randint(0, self.classes, (size,), generator=draw)
            made.append({"x": x, "y": y.to(device)})
        return made


RESNET32 = TimedNetwork("ResNet-32", "resnet32", classes=100, side=32)
RESNET50 = TimedNetwork("ResNet-50", "resnet50", classes=1000, side=224)


@dataclass(frozen=True)
class Mode:
    """A way to run an update."""

    name: str
    # Precision, memory format, and whether the step is compiled or the update captured
    train: TrainConfig
    kernels: bool = True  # whether our own kernels may be used


_half = functools.partial(TrainConfig, precision="bf16", channels_last=True)
EAGER = Mode("eager fp32", TrainConfig(capture=False))
HALF = Mode("eager bf16", _half(capture=False))
COMPILED = Mode("compiled bf16", _half(capture=False, compile=True))
CAPTURED = Mode("captured bf16", _half())
WITHOUT_KERNELS = Mode("captured bf16, torch's kernels", _half(), kernels=False)

Case = tuple[TimedNetwork, int, tuple[Mode, ...]]


def cases(on_gpu: bool, full: bool) -> list[Case]:
    """Network, batch size and modes, the reference mode first."""
    if not on_gpu:
        return [(RESNET32, 32, (EAGER,))]
    small = (EAGER, HALF, CAPTURED, WITHOUT_KERNELS)
    found: list[Case] = [(RESNET32, 128, small)]
    if full:
        found.append((RESNET32, 512, (*small, COMPILED)))
    # Our convolutions serve the few channels of ResNet-32; ResNet-50 has nothing to disable.
    return [*found, (RESNET50, 256, (EAGER, HALF, CAPTURED))]


def measure(settings: BenchSettings, chosen: Sequence[Case] | None = None) -> Table:
    """Milliseconds of a step and BatchFormer's share; all modes of a network take turns."""
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
        with table.attempt(f"{network.title} at {size}"), new_stream(settings.device)():
            _measure_case(table, settings, network, size, modes)
        release_memory(settings.device)
    return table


def _measure_case(
    table: Table, settings: BenchSettings, network: TimedNetwork, size: int, modes: Sequence[Mode]
) -> None:
    for mode, timing, plain in with_and_without(table, settings, network, size, modes):
        table.add(
            network.title,
            size,
            mode.name,
            None if plain is None else plain.ms,
            timing.ms,
            timing.ms.map(lambda ms: 1000 * size / ms),
            None if mode is modes[0] else timing.speed_up,
            None if plain is None else Spread.of(shares(timing, plain)),
        )


def with_and_without(
    table: Table, settings: BenchSettings, network: TimedNetwork, size: int, modes: Sequence[Mode]
) -> Iterator[tuple[Mode, Timing, Timing | None]]:
    """Time every mode with BatchFormer and, where that can be timed, without; all take turns."""
    device = settings.device
    layouts = {mode.train.channels_last for mode in modes}
    batches = {last: network.batches(size, device, last) for last in layouts}
    timers: dict[str, Timer] = {}
    for mode in modes:
        for batchformer in (True, False):
            own = batches[mode.train.channels_last]
            build = functools.partial(UpdateRunner, network, mode, batchformer, device, own)
            timers[_key(mode, batchformer)] = UpdateStopwatch(build, device)
    found = time_interleaved(
        timers,
        settings.repeats,
        usual=ROUNDS,
        budget=GPU_BUDGET if settings.on_gpu else CPU_BUDGET,
        failed=lambda name, error: table.note_failure(f"{network.title} at {size}, {name}", error),
    )
    for mode in modes:
        timing, plain = found.get(_key(mode, True)), found.get(_key(mode, False))
        if timing is not None:
            yield mode, timing, plain


def shares(timing: Timing, plain: Timing) -> list[float]:
    """BatchFormer's share of a step in percent, round by round."""
    pairs = zip(timing.seconds, plain.seconds, strict=True)
    return [100 * (both - alone) / both for both, alone in pairs]


def _key(mode: Mode, batchformer: bool) -> str:
    return f"{mode.name} {'with' if batchformer else 'without'} BatchFormer"


class UpdateRunner:
    """Trains one method as the engine does; a call is one update: forward, backward, optimizer."""

    def __init__(
        self,
        network: TimedNetwork,
        mode: Mode,
        batchformer: bool,
        device: torch.device,
        batches: list[dict[str, Any]],
    ) -> None:
        self.mode = mode
        self.method = network.method(batchformer, device).train()
        if mode.train.channels_last:
            self.method.to(memory_format=torch.channels_last)
        if mode.train.compile:
            self.method.compile_step()
        self.optimizers = self.method.optimizers(network.optim)
        self.optimizer_step = OptimizerStep(mode.train, device)
        self.batches = itertools.cycle(batches)
        self.updates = itertools.count()
        self.capture_errors: list[str] = []
        self.updater: Captured | Eager = Eager(self._update, device)
        if mode.train.capture:
            say = self.capture_errors.append
            self.updater = Captured(self._update, device, self.method.phase, say)

    def __call__(self) -> None:
        """One update."""
        with nullcontext() if self.mode.kernels else available.disabled():
            self.updater(next(self.batches), seed_for(0, "dropout", next(self.updates)))
        if self.capture_errors:
            raise RuntimeError(self.capture_errors[0])

    def warm_up(self) -> None:
        """Run updates until the step is compiled or captured and the optimizer has a state."""
        for _ in range(WARM_UP + 1):
            self()

    def _update(self, batch: Any) -> dict[str, torch.Tensor]:
        losses = self.method.update(batch, self.optimizers, self.optimizer_step)
        self.method.after_update()
        return losses


class UpdateStopwatch(Stopwatch):
    """Times updates of a runner. It is built in the warm-up, so that its errors stop it alone."""

    def __init__(self, build: Callable[[], UpdateRunner], device: torch.device) -> None:
        super().__init__(lambda: None, device, MIN_SECONDS_ON_GPU if device.type == "cuda" else 0)
        self.build = build

    def prepare(self) -> float:
        runner = self.build()
        runner.warm_up()
        self.work = runner
        return super().prepare()
