"""3x3 convolution of few channels in channels-last memory, stride 1, one pixel of zeros around.

It is a product of rows that :mod:`batchformer.lab.models.kernels.conv3x3_tiles` describes.
All sums have a fixed order: the same input gives the same bits.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from batchformer.lab.models.kernels.batch_statistics import Moments
from batchformer.lab.models.kernels.conv3x3_product import product as product
from batchformer.lab.models.kernels.conv3x3_tiles import FORWARD as FORWARD
from batchformer.lab.models.kernels.conv3x3_tiles import INPUT_GRADIENT as INPUT_GRADIENT
from batchformer.lab.models.kernels.conv3x3_tiles import WEIGHT_GRADIENT as WEIGHT_GRADIENT
from batchformer.lab.models.kernels.conv3x3_tiles import Share as Share
from batchformer.lab.models.kernels.conv3x3_tiles import Tile as Tile
from batchformer.lab.models.kernels.conv3x3_weight_gradient import (
    weight_gradient as weight_gradient,
)


def conv3x3(x: Tensor, weight: Tensor) -> tuple[Tensor, Moments]:
    """``conv2d(x, weight, padding=1)`` and the moments of the result, for batch normalisation.

    Under autocast x is cast like the input of any convolution; the weight is cast as it is read.
    Second derivatives are not provided: take them within `kernels.disabled()`.

    Args:
        x: (N, Cin, H, W), channels-last.
        weight: (Cout, Cin, 3, 3), of any type and strides.

    Returns:
        (N, Cout, H, W) in the type of x, channels-last, and its moments.
    """
    if torch.is_autocast_enabled(x.device.type):
        x = x.to(torch.get_autocast_dtype(x.device.type))
    tile = FORWARD[max(weight.shape[:2])].fitted(x.shape[3])
    y, moments = _Conv3x3.apply(x, weight)
    return y, Moments(moments, tile.rows * tile.group)


class _Conv3x3(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, weight)
        out, moments = product(x, weight, moments=True)
        ctx.mark_non_differentiable(moments)
        return out, moments

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor | None, _: None) -> tuple[Tensor | None, Tensor | None]:
        if dy is None:
            return None, None
        x, weight = ctx.saved_tensors
        dx = product(dy, weight, transposed=True)[0] if ctx.needs_input_grad[0] else None
        dw = weight_gradient(x, dy, weight) if ctx.needs_input_grad[1] else None
        return dx, dw
