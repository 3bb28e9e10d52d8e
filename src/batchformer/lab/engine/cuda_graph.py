"""A whole update as a CUDA graph: recorded once its shapes are familiar, replayed ever after.

The host then starts one graph instead of a thousand kernels. What is recorded is the very code
that runs eagerly; updates of other shapes, the first few of each, and whatever cannot be recorded
run that code as it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping
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

#: Eager updates before a recording: optimizers make their state, libraries choose their kernels.
WARM_UP = 3
#: Recordings kept; an epoch has at most two batch sizes, and phases are few.
MOST_RECORDINGS = 8


def why_eager(train: TrainConfig, device: torch.device, method: Method) -> str | None:
    """Why the updates of a run cannot be recorded; None if they can.

    >>> why_eager(TrainConfig(), torch.device("cpu"), Method())
    'the device is cpu, not cuda'
    """
    if device.type != "cuda":
        return f"the device is {device.type}, not cuda"
    if world_size() > 1:
        return "ranks exchange what they have, and wait for one another"
    if not train.capture:
        return "train.no-capture asks for it"
    if train.precision == "fp16":
        return "fp16 decides at each update whether to skip it"
    return method.why_eager()


class Eager:
    """Runs every update as it is written.

    Args:
        work: the whole update of a batch.
        device: where torch's generator serves dropout.
    """

    def __init__(self, work: Work, device: torch.device) -> None:
        self.work, self.device = work, device

    def __call__(self, batch: Batch, seed: int) -> Losses:
        """One update; ``seed`` is that of its dropout."""
        seed_device(self.device, seed)
        return self.work(batch)


@dataclass
class Recording:
    """A graph, and the tensors it reads and writes; it keeps none of them alive by itself."""

    graph: torch.cuda.CUDAGraph
    batch: dict[str, Any]
    losses: Losses


class Captured:
    """Records each kind of update once and replays it.

    Args:
        work: the whole update of a batch: static shapes, all randomness on the device.
        device: a CUDA device. Calls come on the stream that is current at the first.
        phase: what the update depends on besides the batch and the state of tensors; an update in
            another phase is another recording.
        say: takes one line for a person if recording fails.
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
        # A generator of its own: graphs that run side by side must not share their seed's memory.
        self.generator = torch.Generator(device)
        self.recordings: dict[Hashable, Recording] = {}
        self.seen: Counter[Hashable] = Counter()
        self.failed = False

    def __call__(self, batch: Batch, seed: int) -> Losses:
        """One update; ``seed`` is that of its dropout. The losses hold until the next call."""
        key = (self.phase(), signature(batch))
        recording = self.recordings.get(key)
        if recording is None:
            self.seen[key] += 1
            if self.failed or self.seen[key] <= WARM_UP or len(self.recordings) >= MOST_RECORDINGS:
                return self.eager(batch, seed)
            try:
                recording = self.recordings[key] = self._record(batch)
            except RuntimeError as error:
                self.failed = True
                self.say(f"updates are eager from here: recording failed ({_first_line(error)})")
                return self.eager(batch, seed)
        _copy(recording.batch, batch)
        self.generator.manual_seed(seed)
        recording.graph.replay()
        return recording.losses

    def release(self) -> None:
        """Drop all recordings, with the memory that they own; the device must have done its work.

        Without this they stay until Python looks for cycles: the work that they hold is usually a
        method of what holds them.
        """
        for recording in self.recordings.values():
            recording.graph.reset()
        self.recordings.clear()
        self.seen.clear()

    def _record(self, batch: Batch) -> Recording:
        static = {k: v.clone() if isinstance(v, Tensor) else v for k, v in batch.items()}
        graph = torch.cuda.CUDAGraph()
        # A draw on the host would be frozen into the graph.
        host_before = torch.get_rng_state()
        default = torch.cuda.default_generators[torch.cuda.current_device()]
        before = default.graphsafe_get_state()
        default.graphsafe_set_state(self.generator.graphsafe_get_state())
        try:
            with torch.cuda.graph(
                graph,
                stream=torch.cuda.current_stream(self.device),
                capture_error_mode="thread_local",
            ):
                losses = self.work(static)
        finally:
            default.graphsafe_set_state(before)
        if not torch.equal(host_before, torch.get_rng_state()):
            raise RuntimeError("the update draws random numbers on the CPU")
        return Recording(graph, static, losses)


def wait_for(device: torch.device) -> None:
    """Wait until a device has done all that it was asked for, on every stream.

    This comes before a state is saved for good and before anything is torn down. Graphs own the
    memory that their replays write to. And a process that ends with work under way can damage
    others that share the GPU with it through NVIDIA's MPS, which reports a fault of one to all.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def signature(batch: Batch) -> Hashable:
    """Names, shapes and types of the tensors, and all other values.

    >>> signature({"x": torch.zeros(2, 3), "stage": 1})
    (('x', (2, 3), torch.float32), ('stage', 1))
    """
    return tuple(
        (name, tuple(value.shape), value.dtype) if isinstance(value, Tensor) else (name, value)
        for name, value in batch.items()
    )


def _copy(static: Mapping[str, Any], batch: Batch) -> None:
    for name, value in batch.items():
        if isinstance(value, Tensor):
            static[name].copy_(value, non_blocking=True)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
