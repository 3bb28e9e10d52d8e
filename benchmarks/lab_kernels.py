"""The laboratory's kernels against ``torch.compile``: do they earn their lines?

Convolutions and batch normalisation of ResNet-32, and the relation scores of CE-GZSL: with our
kernels, with torch's, and with torch's compiled; each eagerly and in a CUDA graph.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from batchformer.kernels import disabled
from batchformer.lab.bench.measure import BenchSettings, Work, release_memory
from batchformer.lab.bench.table import Table
from batchformer.lab.models.build import build_model
from batchformer.lab.models.generator import SLOPE, pairwise_scores
from benchmarks.attention_kernels import add_rows, within

GPU_BATCHES, CPU_BATCHES = (128, 512), (2,)  # images of a batch
#: Samples, classes and hidden channels: CE-GZSL on CUB.
GPU_PAIRS, CPU_PAIRS = (2048, 150, 2048), (4, 3, 8)
COMPILED, OURS, STOCK = "torch's compiled", "ours", "torch's"


def measure(settings: BenchSettings, batches: tuple[int, ...] | None = None) -> Table:
    """Milliseconds of forward and backward by family, size and candidate."""
    table = Table(
        "lab_kernels",
        "The laboratory's kernels against torch.compile, forward and backward",
        (
            *("family", "size", "candidate", "eager ms", "speed-up over compiled"),
            *("captured ms", "captured speed-up over compiled", "peak GB"),
        ),
        settings.environment("by family"),
        notes=[
            f"Ratios are to the first line of a size: {COMPILED}. Candidates take turns",
            "ResNet-32: bf16 autocast and channels-last images on a GPU. CE-GZSL: float32",
        ],
    )
    if batches is None:
        batches = GPU_BATCHES if settings.on_gpu else CPU_BATCHES
    for size in batches:
        with table.attempt(f"ResNet-32 at {size}"):
            works = network_candidates(size, settings.device)
            add_rows(table, settings, ("ResNet-32", str(size)), works)
        release_memory(settings.device)
    pairs = GPU_PAIRS if settings.on_gpu else CPU_PAIRS
    with table.attempt("pairs {} x {} x {}".format(*pairs)):
        works = pair_candidates(pairs, settings.device)
        add_rows(table, settings, ("CE-GZSL", "{} x {} x {}".format(*pairs)), works)
    return table


def network_candidates(size: int, device: torch.device) -> dict[str, Work]:
    """The gradients of ResNet-32, in each way to compute them."""
    network = build_model("resnet32", 100).to(device).to(memory_format=torch.channels_last)
    x = torch.randn(size, 3, 32, 32, device=device).contiguous(memory_format=torch.channels_last)
    y = torch.randint(100, (size,), device=device)
    given = list(network.parameters())

    def step(forward: Callable[[Tensor], Tensor]) -> tuple[Tensor, ...]:
        # The cache of autocast would keep casts of a captured step for the next one.
        half = device.type == "cuda"
        with torch.autocast(device.type, torch.bfloat16, enabled=half, cache_enabled=False):
            loss = F.cross_entropy(forward(x), y)
        return torch.autograd.grad(loss, given)

    return _candidates(step, network)


def pair_candidates(sizes: tuple[int, int, int], device: torch.device) -> dict[str, Work]:
    """The gradients of relation scores of all pairs.

    The compiler is given the formula, which it may fuse; eagerly it would store all activations.
    """
    n, k, width = sizes
    shapes = (n, width), (k, width), (width,)
    given = [torch.randn(shape, device=device, requires_grad=True) for shape in shapes]
    gradient = torch.randn(n, k, device=device)

    def formula(samples: Tensor, classes: Tensor, weight: Tensor) -> Tensor:
        return F.leaky_relu(samples.unsqueeze(1) + classes, SLOPE) @ weight

    def step(forward: Callable[..., Tensor]) -> tuple[Tensor, ...]:
        return torch.autograd.grad(forward(*given), given, gradient)

    return _candidates(step, pairwise_scores, formula)


def _candidates(
    step: Callable[..., tuple[Tensor, ...]],
    forward: nn.Module | Callable[..., Tensor],
    compiled: Callable[..., Tensor] | None = None,
) -> dict[str, Work]:
    torch.compiler.reset()
    graph = torch.compile(compiled or forward, dynamic=False)
    return {
        COMPILED: within(disabled, functools.partial(step, graph)),
        OURS: functools.partial(step, forward),
        STOCK: within(disabled, functools.partial(step, forward)),
    }
