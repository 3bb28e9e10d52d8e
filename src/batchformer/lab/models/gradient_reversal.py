"""Gradient reversal (Ganin and Lempitsky, 2015): layers before it oppose the layers after it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def reverse_gradient(x: Tensor, coefficient: Tensor | float) -> Tensor:
    """``x`` itself; its gradient is multiplied by minus the coefficient.

    Args:
        x: of any shape.
        coefficient: a number, or a tensor without axes on the device of `x`, which is read there
            and then: a recorded update sees its present value.

    >>> x = torch.ones(2, requires_grad=True)
    >>> reverse_gradient(3 * x, 0.1).sum().backward()
    >>> x.grad
    tensor([-0.3000, -0.3000])
    """
    out: Tensor = _Reversed.apply(x, torch.as_tensor(coefficient))
    return out


class _Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, coefficient: Tensor) -> Tensor:
        ctx.save_for_backward(coefficient)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (coefficient,) = ctx.saved_tensors
        return -coefficient * gradients[0], None
