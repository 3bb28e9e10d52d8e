"""Run updates eagerly, or as CUDA graphs: captured after a warm-up, replayed from then on.

A replay starts one graph instead of a thousand kernels. The captured code is the code that runs
eagerly. Updates of a new shape, the first few of each shape, and updates that cannot be captured
run eagerly.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from batchformer.lab.config.training import TrainConfig
from batchformer.lab.engine.method import Method
from batchformer.lab.engine.optimizer_step import Batch
from batchformer.nn.exchange import world_size
from batchformer.plug.preserve import seed_device

Losses = dict[str, Tensor]
Work = Callable[[Batch], Losses]

#: Eager updates before a capture: optimizers create their state, libraries choose their kernels.
WARM_UP = 3
#: Graphs kept at most. An epoch has at most two batch sizes, and phases are few.
MAX_GRAPHS = 8


def why_eager(train: TrainConfig, device: torch.device, method: Method) -> str | None:
    """Why the updates of a run cannot be captured; None if they can.

    >>> why_eager(TrainConfig(), torch.device("cpu"), Method())
    'the device is cpu, not cuda'
    """
    if device.type != "cuda":
        return f"the device is {device.type}, not cuda"
    if world_size() > 1:
        return "ranks exchange tensors and wait for one another"
    if not train.capture:
        return "train.no-capture asks for it"
    if train.precision == "fp16":
        return "fp16 decides at each update whether to skip it"
    return method.why_eager()


class Eager:
    """Runs every update eagerly."""

    def __init__(self, work: Work, device: torch.device) -> None:
        self.work, self.device = work, device

    def __call__(self, batch: Batch, seed: int) -> Losses:
        """One update; ``seed`` is that of its dropout."""
        seed_device(self.device, seed)
        return self.work(batch)


@dataclass
class CapturedUpdate:
    """A CUDA graph with the tensors that it reads (``batch``) and writes (``losses``)."""

    graph: torch.cuda.CUDAGraph
    batch: dict[str, Any]
    losses: Losses


class Captured:
    """Captures each kind of update once and replays it.

    Args:
        work: the whole update of a batch: static shapes, all randomness on the device.
        device: a CUDA device. All calls must be on the same stream.
        phase: what the update depends on besides the batch and the values of tensors; each phase
            has a graph of its own.
        say: receives one line if a capture fails.
    """

    def __init__(
        self,
        work: Work,
        device: torch.device,
        phase: Callable[[], Hashable],
        say: Callable[[str], None],
    ) -> None:
        self.work, self.device, self.phase, self.say = work, device, phase, say
        self.eager = Eager(work, device)
        # A generator of its own: graphs that run side by side must not share the memory of a seed.
        self.generator = torch.Generator(device)
        self.graphs: dict[Hashable, CapturedUpdate] = {}
        self.calls: Counter[Hashable] = Counter()
        self.failed = False

    def __call__(self, batch: Batch, seed: int) -> Losses:
        """One update; ``seed`` is that of its dropout. The losses hold until the next call."""
        key = (self.phase(), signature(batch))
        captured = self.graphs.get(key)
        if captured is None:
            self.calls[key] += 1
            if self.failed or self.calls[key] <= WARM_UP or len(self.graphs) >= MAX_GRAPHS:
                return self.eager(batch, seed)
            try:
                captured = self.graphs[key] = self._capture(batch)
            except RuntimeError as error:
                self.failed = True
                reason = (str(error).strip() or type(error).__name__).splitlines()[0]
                self.say(f"updates are eager from here: the capture failed ({reason})")
                return self.eager(batch, seed)
        for name, value in batch.items():
            if isinstance(value, Tensor):
                captured.batch[name].copy_(value, non_blocking=True)
        self.generator.manual_seed(seed)
        captured.graph.replay()
        return captured.losses

    def release(self) -> None:
        """Free all graphs and their memory; call :func:`synchronize` before.

        Without this they live until Python collects cycles, as `work` is usually a method of the
        object that holds this one.
        """
        for captured in self.graphs.values():
            captured.graph.reset()
        self.graphs.clear()
        self.calls.clear()

    def _capture(self, batch: Batch) -> CapturedUpdate:
        static = {k: v.clone() if isinstance(v, Tensor) else v for k, v in batch.items()}
        graph = torch.cuda.CUDAGraph()
        # A number drawn on the host would be frozen into the graph.
        host_before = torch.get_rng_state()
        default = torch.cuda.default_generators[torch.cuda.current_device()]
        before = default.graphsafe_get_state()
        default.graphsafe_set_state(self.generator.graphsafe_get_state())
        try:
            with (
                no_collection(),
                torch.cuda.graph(
                    graph,
                    stream=torch.cuda.current_stream(self.device),
                    capture_error_mode="thread_local",
                ),
            ):
                losses = self.work(static)
        finally:
            default.graphsafe_set_state(before)
        if not torch.equal(host_before, torch.get_rng_state()):
            raise RuntimeError("the update draws random numbers on the CPU")
        return CapturedUpdate(graph, static, losses)


@contextmanager
def no_collection() -> Iterator[None]:
    """Collect garbage now, and none inside the block.

    Garbage may hold graphs and events of a run that has ended. CUDA forbids freeing these during a
    capture: the capture would fail, and the run would go on eagerly.
    """
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def new_stream(device: torch.device) -> Callable[[], AbstractContextManager[Any]]:
    """Make a stream for one run and return a function that enters it; on a CPU it does nothing.

    A graph cannot be captured on the default stream.
    """
    if device.type != "cuda":
        return nullcontext
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream(device))
    return lambda: torch.cuda.stream(stream)


def synchronize(device: torch.device) -> None:
    """Wait until a device has finished all its work, on every stream.

    This comes before a state is saved and before anything is freed, because graphs own the memory
    that their replays write to. Also, a process that ends with unfinished work can damage others
    that share the GPU through NVIDIA's MPS, which reports a fault of one process to all.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def signature(batch: Batch) -> Hashable:
    """Names, shapes and types of the tensors, and all other values.

    >>> signature({"x": torch.zeros(2, 3), "step": 1})
    (('x', (2, 3), torch.float32), ('step', 1))
    """
    return tuple(
        (name, tuple(value.shape), value.dtype) if isinstance(value, Tensor) else (name, value)
        for name, value in batch.items()
    )
