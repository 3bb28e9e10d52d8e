"""Batch normalisation in training, with the addition and the ReLU after it, channels-last.

Pixels are rows, as :mod:`batchformer.lab.models.kernels.channel_rows` has them.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from batchformer.lab.models.kernels.batch_norm_gradients import gradient_sums as gradient_sums
from batchformer.lab.models.kernels.batch_norm_gradients import input_gradient as input_gradient
from batchformer.lab.models.kernels.batch_norm_gradients import merge_sums as merge_sums
from batchformer.lab.models.kernels.batch_statistics import Moments as Moments
from batchformer.lab.models.kernels.batch_statistics import merge as merge
from batchformer.lab.models.kernels.batch_statistics import row_moments as row_moments
from batchformer.lab.models.kernels.channel_rows import offsets, read_channels, shape_of

#: Values of one tile of rows, and warps that work on it.
APPLY_TILE, APPLY_WARPS = 8192, 8


def batch_norm_relu(
    y: Tensor, norm: nn.BatchNorm2d, residual: Tensor | None = None, moments: Moments | None = None
) -> Tensor:
    """``relu(norm(y) + residual)`` as in training, the running statistics of `norm` updated.

    Second derivatives are not provided: take them within `kernels.disabled()`.

    Args:
        y: (N, C, H, W), channels-last.
        norm: affine, tracking statistics with a momentum, in float32.
        residual: of the shape and type of y.
        moments: those of y where known; computed here where None.
    """
    out: Tensor = _BatchNormRelu.apply(y, norm.weight, norm.bias, residual, norm, moments)
    return out


class _BatchNormRelu(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        y: Tensor,
        weight: Tensor,
        bias: Tensor,
        residual: Tensor | None,
        norm: nn.BatchNorm2d,
        moments: Moments | None,
    ) -> Tensor:
        y = y.contiguous(memory_format=torch.channels_last)
        statistics = merge(moments or row_moments(y), y, norm)
        out = apply(y, statistics, weight, bias, residual)
        # Without a residual the sign before the ReLU follows from y: `out` need not be read again.
        ctx.save_for_backward(y, statistics, weight, bias, None if residual is None else out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        y, statistics, weight, bias, out = ctx.saved_tensors
        dout = dout.contiguous(memory_format=torch.channels_last)
        gradient, sums = gradient_sums(dout, y, statistics, weight, bias, out)
        dweight, dbias = merge_sums(sums)
        dy = None
        if ctx.needs_input_grad[0]:
            rectify = out is None
            dy = input_gradient(gradient, y, statistics, weight, bias, dweight, dbias, rectify)
        return dy, dweight, dbias, None if out is None else gradient, None, None


def apply(
    y: Tensor, statistics: Tensor, weight: Tensor, bias: Tensor, residual: Tensor | None
) -> Tensor:
    """Normalise y (N, C, H, W) by statistics (2, C), add the residual, rectify."""
    if residual is not None:
        residual = residual.contiguous(memory_format=torch.channels_last)
    channels, pixels, block, rows = shape_of(y, APPLY_TILE)
    out = torch.empty_like(y)
    with torch.cuda.device_of(y):
        _apply[(triton.cdiv(pixels, rows),)](
            y, residual, out, statistics, weight, bias, pixels,
            C=channels, BLOCK=block, ROWS=rows, num_warps=APPLY_WARPS,
        )  # fmt: skip
    return out


@triton.jit
def _apply(
    y_ptr, residual_ptr, out_ptr, statistics_ptr, weight_ptr, bias_ptr, pixels,
    C: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    offset, inside = offsets(tl.program_id(0) * ROWS, pixels, C, BLOCK, ROWS)
    mean = read_channels(statistics_ptr, C, BLOCK)
    scale = read_channels(weight_ptr, C, BLOCK) * read_channels(statistics_ptr + C, C, BLOCK)
    y = tl.load(y_ptr + offset, inside, 0.0).to(tl.float32)
    z = (y - mean) * scale + read_channels(bias_ptr, C, BLOCK)
    if residual_ptr is not None:
        z += tl.load(residual_ptr + offset, inside, 0.0).to(tl.float32)
    # Not maximum(z, 0), which would make a NaN zero and hide a run that diverges.
    tl.store(out_ptr + offset, tl.where(z <= 0, 0.0, z).to(out_ptr.dtype.element_ty), inside)
