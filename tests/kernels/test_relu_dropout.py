"""Bias, ReLU and dropout in one pass, against float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor


@pytest.mark.gpu
@pytest.mark.parametrize(("n", "channels", "dropout"), [(5, 24, 0.0), (21, 300, 0.4)])
def test_relu_dropout(
    n: int,
    channels: int,
    dropout: float,
    dtype: torch.dtype,
    device: torch.device,
    seed: Tensor,
    assert_near: Callable[[Tensor, Tensor], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from batchformer.kernels.dropout import threshold_and_scale
    from batchformer.kernels.relu_dropout import ReluDropout

    if device.type == "cpu":  # several tiles of a program
        monkeypatch.setattr("batchformer.kernels.relu_dropout.PROGRAMS", 2)
    torch.manual_seed(0)
    x = torch.randn(n, channels, device=device, dtype=dtype, requires_grad=True)
    bias = torch.randn(channels, device=device, dtype=dtype, requires_grad=True)
    scale = threshold_and_scale(dropout)[1]
    out = ReluDropout.apply(x, bias, dropout, seed)
    gradient = torch.randn_like(out)
    got = torch.autograd.grad(out, (x, bias), gradient)
    rectified = F.relu(x.detach().double() + bias.detach().double())
    survived = out > 0
    assert not (survived & (rectified == 0)).any()
    rate = float(survived.sum() / (rectified > 0).sum())
    assert rate == pytest.approx(1 - dropout, abs=0.1)
    assert_near(out, rectified * survived * scale)
    assert_near(got[0], gradient.double() * survived * scale)
    assert_near(got[1], (gradient.double() * survived * scale).sum(0))


@pytest.mark.gpu
def test_nan_stays_as_in_the_rectifier_of_torch(device: torch.device, seed: Tensor) -> None:
    from batchformer.kernels.relu_dropout import ReluDropout

    x = torch.randn(3, 8, generator=torch.Generator().manual_seed(0)).to(device)
    x[1, 2] = torch.nan
    x.requires_grad_()
    bias = torch.zeros(8, device=device)
    out, expected = ReluDropout.apply(x, bias, 0.0, seed), F.relu(x + bias)
    torch.testing.assert_close(out, expected, equal_nan=True)
    (got,) = torch.autograd.grad(out.sum(), x)
    (wanted,) = torch.autograd.grad(expected.sum(), x)
    torch.testing.assert_close(got, wanted)
