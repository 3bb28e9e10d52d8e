"""Bias, ReLU and dropout in one pass, against float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_GPU else "cpu")
TYPES = [torch.float32, torch.bfloat16, torch.float16] if ON_GPU else [torch.float32]
#: Relative error (norm of the difference over the norm) that a type may have.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 1e-3}


def relative(a: Tensor, b: Tensor) -> float:
    a, b = a.detach().double(), b.detach().double()
    return float((a - b).norm() / b.norm())


def seeds(number: int = 123) -> Tensor:
    return torch.tensor([number], device=DEVICE)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("n", "channels", "dropout"), [(5, 24, 0.0), (21, 300, 0.4)])
def test_relu_dropout(
    n: int, channels: int, dropout: float, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    from batchformer.kernels.dropout import threshold_and_scale
    from batchformer.kernels.relu_dropout import ReluDropout

    if not ON_GPU:  # several tiles of a program
        monkeypatch.setattr("batchformer.kernels.relu_dropout.PROGRAMS", 2)
    torch.manual_seed(0)
    x = torch.randn(n, channels, device=DEVICE, dtype=dtype, requires_grad=True)
    bias = torch.randn(channels, device=DEVICE, dtype=dtype, requires_grad=True)
    scale = threshold_and_scale(dropout)[1]
    out = ReluDropout.apply(x, bias, dropout, seeds())
    gradient = torch.randn_like(out)
    got = torch.autograd.grad(out, (x, bias), gradient)
    rectified = F.relu(x.detach().double() + bias.detach().double())
    survived = out > 0
    assert not (survived & (rectified == 0)).any()
    rate = float(survived.sum() / (rectified > 0).sum())
    assert rate == pytest.approx(1 - dropout, abs=0.1)
    assert relative(out, rectified * survived * scale) < TOLERANCE[dtype]
    assert relative(got[0], gradient.double() * survived * scale) < TOLERANCE[dtype]
    assert relative(got[1], (gradient.double() * survived * scale).sum(0)) < TOLERANCE[dtype]
