"""A step of MoCo-v3 with and without BatchFormer: on images, and on features alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from batchformer.lab.bench.measure import (
    BenchSettings,
    GraphStopwatch,
    Stopwatch,
    Timer,
    Timing,
    release_memory,
    time_interleaved,
)
from batchformer.lab.bench.step import (
    BATCHES,
    CAPTURED,
    CPU_BUDGET,
    EAGER,
    GPU_BUDGET,
    HALF,
    RESNET32,
    RESNET50,
    ROUNDS,
    Mode,
    TimedNetwork,
    shares,
    with_and_without,
)
from batchformer.lab.bench.table import Spread, Table
from batchformer.lab.config.methods import MethodConfig, ModuleConfig
from batchformer.lab.config.training import OptimConfig
from batchformer.lab.engine.cuda_graph import new_stream
from batchformer.lab.engine.method import Method
from batchformer.lab.engine.optimizer_step import OptimizerStep
from batchformer.lab.methods.classifier import make_encoder
from batchformer.lab.methods.moco import MocoV3
from batchformer.lab.models.build import build_model
from batchformer.nn.randomness import generator


class GivenFeatures(nn.Module):
    """A network without layers, with timm's interface: its images are features (N, C) already."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.num_features = channels

    def forward_features(self, x: Tensor) -> Tensor:
        return x

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        return x

    def get_classifier(self) -> nn.Module:
        return nn.Identity()


@dataclass(frozen=True)
class TwoViews(TimedNetwork):
    """MoCo-v3 on random images in two views, or on random features."""

    optim: ClassVar[OptimConfig] = OptimConfig(
        name="lars", lr=0.1, weight_decay=1e-6, decayed="matrices"
    )
    hidden: int = 4096  # channels inside the projector and the predictor
    dim: int = 256  # channels of queries and keys
    channels: int = 0  # C of features, which then take the place of images; 0: images

    def method(self, batchformer: bool, device: torch.device) -> Method:
        """MoCo-v3 with or without BatchFormer, on the device."""
        torch.manual_seed(0)
        hyper = MethodConfig(
            temperature=1.0,
            momentum=0.99,
            momentum_schedule="cosine",
            dim=self.dim,
            projection_hidden=self.hidden,
        )
        method = MocoV3(self.network(), ModuleConfig(enabled=batchformer), seed=0, hyper=hyper)
        method.begin_training(100_000)
        return method.to(device)

    def network(self) -> Any:
        """A network for the images, or one without layers for features."""
        if self.channels:
            return GivenFeatures(self.channels)
        return build_model(self.name, self.classes)

    def batches(
        self, size: int, device: torch.device, channels_last: bool = False
    ) -> list[dict[str, Any]]:
        """Two views, each of random images or features of its own."""
        if self.channels:
            draw = generator(0, "augmentation")
            drawn = torch.randn(BATCHES, 2, size, self.channels, generator=draw).to(device)
            return [{"x": x, "view2": other} for x, other in drawn]
        first = super().batches(size, device, channels_last)
        # Any other images serve as well as another view of the same ones.
        return [
            {"x": batch["x"], "view2": other["x"]}
            for batch, other in zip(first, [*first[1:], first[0]], strict=True)
        ]


Case = tuple[TwoViews, int, tuple[Mode, ...]]


def cases(on_gpu: bool) -> list[Case]:
    """What is trained, batch size and modes; for a CPU all is smaller."""
    if on_gpu:
        images = TwoViews(RESNET50.title, RESNET50.name, RESNET50.classes, RESNET50.side)
        features = TwoViews("features, C 2048", "", 0, 0, channels=2048)
        return [(images, 256, (HALF, CAPTURED)), (features, 4096, (HALF, CAPTURED))]
    images = TwoViews(
        RESNET32.title, RESNET32.name, RESNET32.classes, RESNET32.side, hidden=256, dim=64
    )
    features = TwoViews("features, C 256", "", 0, 0, hidden=256, dim=64, channels=256)
    return [(images, 16, (EAGER,)), (features, 256, (EAGER,))]


def measure(settings: BenchSettings, chosen: Sequence[Case] | None = None) -> Table:
    """Milliseconds and images a second, and BatchFormer's share of a step."""
    table = Table(
        "contrast",
        "A training step of MoCo-v3: two views, two encoders, backward, LARS, momentum",
        (
            "network",
            "batch",
            "mode",
            "without BatchFormer, ms",
            "with BatchFormer, ms",
            "images/s without",
            "images/s with",
            "BatchFormer's share, %",
            "the module alone, ms",
        ),
        settings.environment("by mode"),
        notes=[
            "An image counts once, though both of its views are encoded twice; BatchFormer's share "
            "holds all that comes with it: heads on twice the rows, and four contrasts for one",
            "The module alone: forward and backward on features of one batch. A step does it "
            "twice, for the queries of both views, and forward alone twice, for their keys",
        ],
    )
    for views, size, modes in chosen or cases(settings.on_gpu):
        with table.attempt(f"{views.title} at {size}"), new_stream(settings.device)():
            _measure_case(table, settings, views, size, modes)
        release_memory(settings.device)
    return table


def _measure_case(
    table: Table, settings: BenchSettings, views: TwoViews, size: int, modes: Sequence[Mode]
) -> None:
    def per_second(ms: float) -> float:
        return 1000 * size / ms

    alone: dict[str, Timing] = {}
    with table.attempt(f"{views.title} at {size}, the module alone"):
        alone = module_alone(settings, views.network().num_features, size, modes)
    for mode, timing, plain in with_and_without(table, settings, views, size, modes):
        table.add(
            views.title,
            size,
            mode.name,
            None if plain is None else plain.ms,
            timing.ms,
            None if plain is None else plain.ms.map(per_second),
            timing.ms.map(per_second),
            None if plain is None else Spread.of(shares(timing, plain)),
            alone[mode.name].ms if mode.name in alone else None,
        )


def module_alone(
    settings: BenchSettings, channels: int, size: int, modes: Sequence[Mode]
) -> dict[str, Timing]:
    """Forward and backward of BatchFormer on features (size, channels), by the name of the mode."""
    device = settings.device
    timers: dict[str, Timer] = {}
    for mode in modes:
        captured = mode.train.capture and device.type == "cuda"
        work = _module_work(channels, size, OptimizerStep(mode.train, device))
        timers[mode.name] = (GraphStopwatch if captured else Stopwatch)(work, device)
    budget = GPU_BUDGET if settings.on_gpu else CPU_BUDGET
    return time_interleaved(timers, settings.repeats, usual=ROUNDS, budget=budget)


def _module_work(channels: int, size: int, optimizer_step: OptimizerStep) -> Callable[[], object]:
    encoder: Any = make_encoder(channels, ModuleConfig(), seed=0)
    encoder.to(optimizer_step.device).train()
    draw = generator(0, "augmentation")
    x, slope = torch.randn(2, size, channels, generator=draw).to(optimizer_step.device)
    given = [x.requires_grad_(), *encoder.parameters()]

    def work() -> object:
        with optimizer_step.autocast():
            mixed = encoder(x)
        return torch.autograd.grad(mixed, given, slope.to(mixed.dtype))

    return work
