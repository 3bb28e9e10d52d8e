"""One optimizer step: precision, gradient accumulation, clipping, several ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from batchformer.lab.config.training import TrainConfig
from batchformer.lab.engine.distributed.gradients import Parallel

if TYPE_CHECKING:
    from batchformer.lab.engine.method import Method

Batch = Mapping[str, Any]
Step = Callable[[Batch], dict[str, Tensor]]

#: Types that autocast computes in; other precisions do not use it.
_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


class OptimizerStep:
    """Turns the loss of a method into an update of its weights.

    Attributes:
        parallel: averages gradients over ranks; None with one rank.
    """

    parallel: Parallel | None = None

    def __init__(self, config: TrainConfig, device: torch.device) -> None:
        self.config, self.device = config, device
        self.scaler = torch.amp.GradScaler(device.type, enabled=config.precision == "fp16")

    def autocast(self) -> torch.autocast:
        """The precision of forward passes, in training and evaluation."""
        half = _AUTOCAST.get(self.config.precision)
        return torch.autocast(self.device.type, dtype=half, enabled=half is not None)

    def minimise(
        self,
        step: Step,
        batch: Batch,
        optimizer: Optimizer,
        parameters: Iterable[nn.Parameter],
    ) -> dict[str, Tensor]:
        """Take one optimizer step on ``step(batch)["loss"]``; return all losses, detached.

        With accumulation the batch is split into parts that do not attend to one another. The mean
        over parts is weighted by rows, so a smaller last part counts less. With several ranks the
        same holds for the rows of each rank; average the returned losses over ranks.
        """
        config, parallel = self.config, self.parallel
        optimizer.zero_grad(set_to_none=True)
        total: dict[str, Tensor] = {}
        weight = None if parallel is None else parallel.weight(batch)
        parts = _parts(batch, config.accumulate)
        for number, (part, share) in enumerate(parts, 1):
            on_ranks: AbstractContextManager[Step] = nullcontext(step)
            if parallel is not None:
                on_ranks = parallel.part(step, optimizer, last=number == len(parts))
            with on_ranks as step_part:
                with self.autocast():
                    losses = step_part(part)
                loss = losses["loss"] * (share * config.loss_multiplier)
                loss = loss if weight is None else loss * weight.to(loss.dtype)
                self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            for name, value in losses.items():
                weighted = value.detach() * share
                weighted = weighted if weight is None else weighted * weight.to(value.dtype)
                total[name] = total.get(name, 0.0) + weighted
        if parallel is not None:
            parallel.finish(step, optimizer)
        if config.clip_norm:
            self.scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(parameters, config.clip_norm)
        self.scaler.step(optimizer)
        self.scaler.update()
        return total


def _parts(batch: Batch, count: int) -> list[tuple[Batch, float]]:
    """Split a batch into ``count`` parts, each with its share of the rows.

    If the batch was sharded over ranks, ``batch["parts"]`` holds this rank's rows of each part.
    """
    if count == 1:
        return [(batch, 1.0)]
    rows = next(len(value) for value in batch.values() if isinstance(value, Tensor))
    sizes = batch.get("parts")
    cuts = {
        key: _split(value, sizes or count) if isinstance(value, Tensor) else [value] * count
        for key, value in batch.items()
        if key != "parts"
    }
    number = min(len(cut) for cut in cuts.values())
    parts = [{key: cut[index] for key, cut in cuts.items()} for index in range(number)]
    sizes = [next(len(v) for v in part.values() if isinstance(v, Tensor)) for part in parts]
    return [(part, size / rows) for part, size in zip(parts, sizes, strict=True)]


def _split(rows: Tensor, into: int | tuple[int, ...]) -> list[Tensor]:
    """Split into this many parts, or into these sizes if they add up to the rows."""
    if isinstance(into, int):
        return list(rows.chunk(into))
    if len(rows) == sum(into):
        return list(torch.split(rows, list(into)))
    return list(rows.tensor_split(len(into)))


# Precisions that autocast does not cover: TF32 on or off, and double precision


@contextmanager
def matmul_precision(precision: str) -> Iterator[None]:
    """Allow TF32 in matrix products and convolutions if the precision is ``tf32``, else forbid it.

    torch has one switch for each of the two, and by default allows TF32 in convolutions only. A
    CUDA graph keeps the setting with which it was captured.
    """
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = precision == "tf32"
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


def to_double(value: Any) -> Any:
    """A floating-point tensor, or a list of them, in double precision; other values unchanged.

    >>> import torch
    >>> to_double(torch.ones(1)).dtype, to_double(torch.arange(2)).dtype
    (torch.float64, torch.int64)
    """
    if isinstance(value, list):
        return [to_double(each) for each in value]
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


@contextmanager
def predict_in_double(method: Method) -> Iterator[None]:
    """Cast inputs of ``method.predict`` to double; tasks provide them in single precision."""
    before, predict = method.__dict__.get("predict"), method.predict
    method.__dict__["predict"] = lambda x: predict(to_double(x))
    try:
        yield
    finally:
        del method.__dict__["predict"]
        if before is not None:
            method.__dict__["predict"] = before
