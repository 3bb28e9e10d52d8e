"""Where the time of a captured training step goes, by kernel families."""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Iterable

import torch

from batchformer.lab.bench.measure import BenchSettings, Stopwatch, Timer, time_interleaved
from batchformer.lab.bench.step import CAPTURED, RESNET32, UpdateRunner
from batchformer.lab.bench.table import Table
from batchformer.lab.engine.cuda_graph import new_stream

BATCH = 512
REPLAYS = 20
ROUNDS, BUDGET = 5, 3.0

Kernel = tuple[str, float]  # name and microseconds, in the order in which they ran

CONVOLUTION = ("convolution, forward", "convolution, data gradient", "convolution, weight gradient")
#: The first pattern found in a kernel's name decides; ours are named in the package's kernels.
FAMILIES: tuple[tuple[str, str], ...] = (
    (r"sgd|adam|multi_tensor", "optimizer"),
    (r"wgrad|^_weight_gradient|^_sum_parts", CONVOLUTION[2]),
    (r"dgrad", CONVOLUTION[1]),
    (r"fprop|^_product|implicit_convolve|conv2d|convolve", CONVOLUTION[0]),
    (
        r"^_row_moments|^_merge|^_apply|^_gradient_sums|^_input_gradient|batch_?norm|bn_[fb]w",
        "batch norm, ReLU and shortcut",
    ),
    (r"gemm|cutlass|nvjet|cublas|splitk", "matrix products"),
    (
        r"softmax|layer_?norm|dropout|^_forward|^_backward|^_delta|nll",
        "attention, layer norm, dropout, loss",
    ),
    (r"memcpy|memset|copy|fill|catarray", "copies, casts and fills"),
)
REST = "the rest"
#: What begins the backward pass, and what ends a step. In between, our convolution computes a
#: gradient.
BACKWARD, LAST = re.compile(r"backward|gradient|wgrad|dgrad"), "optimizer"


def measure(settings: BenchSettings) -> Table:
    """Microseconds a step by family, with BatchFormer and without, and the device's idle time."""
    if not settings.on_gpu:
        raise RuntimeError(f"profile needs a CUDA device, and this is {settings.device}")
    table = Table(
        "profile",
        f"Where the time goes: {RESNET32.title}, batch {BATCH}, captured",
        ("kernels", "with BatchFormer, µs", "%", "without, µs", "BatchFormer adds, µs"),
        settings.environment("bfloat16"),
        notes=["Idle is the time of a step less that of its kernels, which the profiler measures"],
    )
    with new_stream(settings.device)():
        batches = RESNET32.batches(BATCH, settings.device, CAPTURED.train.channels_last)
        runners = {
            name: UpdateRunner(RESNET32, CAPTURED, batchformer, settings.device, batches)
            for name, batchformer in (("with", True), ("without", False))
        }
        for runner in runners.values():
            runner.warm_up()
        timers: dict[str, Timer] = {
            name: Stopwatch(runner, settings.device, calls=REPLAYS)
            for name, runner in runners.items()
        }
        timings = time_interleaved(timers, settings.repeats, usual=ROUNDS, budget=BUDGET)
        kernels = {name: profiled(runner, REPLAYS) for name, runner in runners.items()}
    steps = {name: 1000 * timing.ms.median for name, timing in timings.items()}
    fill(table, {name: by_family(found) for name, found in kernels.items()}, steps)
    return table


def profiled(runner: UpdateRunner, replays: int) -> list[Kernel]:
    """The kernels of this many steps, their times divided by the number of steps."""
    from torch._C._autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(replays):
            runner()
        torch.cuda.synchronize()
    events = [e for e in profiler.events() or [] if e.device_type == DeviceType.CUDA]
    if not events:
        raise RuntimeError("the profiler saw no kernels; it may not be allowed to on this machine")
    events.sort(key=lambda event: event.time_range.start)
    return [(event.name, event.time_range.elapsed_us() / replays) for event in events]


def by_family(kernels: Iterable[Kernel]) -> dict[str, float]:
    """Microseconds by family.

    Our own convolution is one kernel in both directions: after a kernel of the backward pass, and
    before the optimizer, it computes a gradient.
    """
    total: dict[str, float] = defaultdict(float)
    in_backward = False
    for name, microseconds in kernels:
        kind = family(name)
        in_backward = kind != LAST and (in_backward or bool(BACKWARD.search(name.lower())))
        if kind == CONVOLUTION[0] and in_backward:
            kind = CONVOLUTION[1]
        total[kind] += microseconds
    return dict(total)


@functools.cache
def family(name: str) -> str:
    """The family of a kernel by its name.

    >>> family("sm90_xmma_wgrad_implicit_gemm"), family("_product"), family("elementwise_kernel")
    ('convolution, weight gradient', 'convolution, forward', 'the rest')
    """
    lower = name.lower()
    return next((kind for pattern, kind in FAMILIES if re.search(pattern, lower)), REST)


def fill(table: Table, kernels: dict[str, dict[str, float]], steps: dict[str, float]) -> None:
    """Add the rows: every family, the device's idle time, and the step itself."""
    kinds = [kind for _, kind in FAMILIES] + [REST]
    order = [*CONVOLUTION, *(kind for kind in kinds if kind not in CONVOLUTION)]
    parts = {
        kind: [found.get(kind, 0.0) for found in (kernels["with"], kernels["without"])]
        for kind in order
    }
    busy = [sum(column) for column in zip(*parts.values(), strict=True)]
    parts["idle"] = [steps["with"] - busy[0], steps["without"] - busy[1]]
    parts["the step"] = [steps["with"], steps["without"]]
    for kind, (both, plain) in parts.items():
        if both or plain:
            table.add(kind, both, 100 * both / steps["with"], plain, both - plain)
