"""A running mean of the weights, whose update can be recorded in a CUDA graph."""

from __future__ import annotations

from collections import defaultdict
from itertools import chain
from typing import Any

from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


class RunningMean(AveragedModel):
    """torch's exponential average of parameters and buffers, without a question to the device.

    torch's own asks at each update whether it is the first, and moves its counter to the device.

    Args:
        model: what is averaged; copied.
        decay: share of the mean that an update keeps.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        mean: Any = get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]
        super().__init__(model, multi_avg_fn=mean, use_buffers=True)
        self._mean = mean

    def update_parameters(self, model: nn.Module) -> None:
        """Take in the weights of the model after one more update."""
        if int(self.n_averaged) == 0:  # a counter on the CPU
            super().update_parameters(model)
            return
        pairs: dict[Any, tuple[list[Tensor], list[Tensor]]] = defaultdict(lambda: ([], []))
        mine = chain(self.module.parameters(), self.module.buffers())
        theirs = chain(model.parameters(), model.buffers())
        for own, new in zip(mine, theirs, strict=True):
            if not own.is_floating_point():
                own.detach().copy_(new)  # torch's mean of whole numbers is rounded towards zero
                continue
            means, values = pairs[own.device, own.dtype]
            means.append(own.detach())
            values.append(new.detach())
        for means, values in pairs.values():
            self._mean(means, values, None)
        self.n_averaged += 1
