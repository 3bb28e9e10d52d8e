"""Batch normalisation over the rows of all ranks, also on the CPU."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from batchformer.lab.engine.distributed.gradients import sum_over_ranks
from batchformer.nn.exchange import world_size
from batchformer.torch_private import BatchNorm


class SyncNorm(BatchNorm):
    """``nn.SyncBatchNorm`` for any device; ranks may have different numbers of rows.

    torch's own runs on GPUs only. Outputs, running statistics and gradients averaged over ranks
    equal those of one process with all rows.
    """

    def _check_input_dim(self, input: Tensor) -> None:
        if input.ndim < 2:
            raise ValueError(
                f"batch normalisation needs an input with rows and channels, (N, C, ...), got "
                f"{tuple(input.shape)}"
            )

    @classmethod
    def of(cls, norm: BatchNorm) -> SyncNorm:
        """A SyncNorm that shares the parameters and statistics of another layer."""
        made = cls(norm.num_features, norm.eps, norm.momentum, False, False)
        made.affine, made.track_running_stats = norm.affine, norm.track_running_stats
        made.weight, made.bias = norm.weight, norm.bias
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            setattr(made, name, getattr(norm, name))
        made.training = norm.training
        return made

    def forward(self, input: Tensor) -> Tensor:
        """(N, C, ...) to the same shape."""
        self._check_input_dim(input)
        if not (self.training or self.running_mean is None):
            mean, var = self.running_mean, self.running_var
            return F.batch_norm(input, mean, var, self.weight, self.bias, False, 0.0, self.eps)
        axes = [axis for axis in range(input.ndim) if axis != 1]
        shape = [1, -1] + [1] * (input.ndim - 2)
        # Half precision cannot hold a sum over many rows.
        x = input.float() if input.dtype in (torch.float16, torch.bfloat16) else input
        values = torch.tensor([x.numel() // x.shape[1]], dtype=x.dtype, device=x.device)
        first = sum_over_ranks(torch.cat((x.sum(axes), values)))
        count = first[-1].detach()
        mean = first[:-1] / count
        centred = x - mean.view(shape)
        variance = sum_over_ranks(centred.square().sum(axes)) / count
        self._track(mean.detach(), variance.detach(), count)
        normal = centred * (variance + self.eps).rsqrt().view(shape)
        if self.weight is not None:
            normal = normal * self.weight.view(shape) + self.bias.view(shape)
        return normal.to(input.dtype)

    @torch.no_grad()
    def _track(self, mean: Tensor, variance: Tensor, count: Tensor) -> None:
        if not self.training or self.running_mean is None or self.running_var is None:
            return
        momentum: float | Tensor = 0.0 if self.momentum is None else self.momentum
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:
                momentum = 1.0 / self.num_batches_tracked.to(mean.dtype)
        unbiased = variance * (count / (count - 1))
        for kept, new in ((self.running_mean, mean), (self.running_var, unbiased)):
            kept.mul_(1 - momentum).add_(new.to(kept.dtype) * momentum)


def synchronise_norms(model: nn.Module, device: torch.device) -> None:
    """Replace every batch normalisation by one over all ranks; names in the state stay."""
    if world_size() == 1:
        return
    made: dict[int, nn.Module] = {}
    for parent in list(model.modules()):
        for name, norm in parent.named_children():
            if isinstance(norm, BatchNorm) and not isinstance(norm, SyncNorm):
                if id(norm) not in made:
                    made[id(norm)] = _synchronised(norm, device)
                setattr(parent, name, made[id(norm)])


def _synchronised(norm: BatchNorm, device: torch.device) -> nn.Module:
    if device.type != "cuda":
        return SyncNorm.of(norm)
    made: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(norm)  # type: ignore[no-untyped-call]
    return made
