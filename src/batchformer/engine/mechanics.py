"""The mechanics of one optimizer step: precision, accumulation, clipping."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from batchformer.engine.config import TrainConfig

Batch = Mapping[str, Any]
Step = Callable[[Batch], dict[str, Tensor]]

_TYPES = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}


class Mechanics:
    """What a method uses to turn a loss into an update.

    Args:
        config: precision, accumulation and clipping.
        device: where the run takes place.
    """

    def __init__(self, config: TrainConfig, device: torch.device) -> None:
        self.config, self.device = config, device
        self.scaler = torch.amp.GradScaler(device.type, enabled=config.precision == "fp16")

    def autocast(self) -> torch.autocast:
        """The precision of forward passes, in training and evaluation."""
        kind = _TYPES[self.config.precision]
        return torch.autocast(self.device.type, dtype=kind, enabled=kind != torch.float32)

    def minimise(
        self,
        step: Step,
        batch: Batch,
        optimizer: Optimizer,
        parameters: Iterable[nn.Parameter],
    ) -> dict[str, Tensor]:
        """One update of ``step(batch)["loss"]``; returns the parts, detached.

        An accumulated batch is cut into parts that do not attend to one another; their mean is
        weighted by rows, so the loss of a ragged part counts for what it holds.
        """
        config = self.config
        optimizer.zero_grad(set_to_none=True)
        total: dict[str, Tensor] = {}
        for part, share in _parts(batch, config.accumulate):
            with self.autocast():
                losses = step(part)
            scaled: Tensor = self.scaler.scale(losses["loss"] * (share * config.loss_multiplier))
            scaled.backward()  # type: ignore[no-untyped-call]
            for name, value in losses.items():
                total[name] = total.get(name, 0.0) + value.detach() * share
        if config.clip_norm:
            self.scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(parameters, config.clip_norm)
        self.scaler.step(optimizer)
        self.scaler.update()
        return total


def _parts(batch: Batch, count: int) -> Iterable[tuple[Batch, float]]:
    """The batch in ``count`` parts, each with its share of the rows."""
    if count == 1:
        return [(batch, 1.0)]
    rows = next(len(value) for value in batch.values() if isinstance(value, Tensor))
    cuts = {
        key: value.chunk(count) if isinstance(value, Tensor) else [value] * count
        for key, value in batch.items()
    }
    number = min(len(cut) for cut in cuts.values())
    parts = [{key: cut[index] for key, cut in cuts.items()} for index in range(number)]
    sizes = [next(len(v) for v in part.values() if isinstance(v, Tensor)) for part in parts]
    return [(part, size / rows) for part, size in zip(parts, sizes, strict=True)]
