"""The residual stream, dropout and the norm in one pass, against float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

#: Samples that make several rows of a program.
MANY = 300 if torch.cuda.is_available() else 11


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("n", "channels", "dropout"), [(5, 24, 0.0), (9, 100, 0.4), (MANY, 17, 0.5)]
)
def test_residual_norm(
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
    from batchformer.kernels.residual_norm import ResidualNorm

    if device.type == "cpu":  # several rows of a program
        monkeypatch.setattr("batchformer.kernels.residual_norm.PROGRAMS", 4)
    torch.manual_seed(0)
    shapes = [(n, channels)] * 2 + [(channels,)] * 3
    given = [torch.randn(s, device=device, dtype=dtype, requires_grad=True) for s in shapes]
    out = ResidualNorm.apply(*given, dropout, seed, dtype)
    gradient = torch.randn_like(out)
    got = torch.autograd.grad(out, given, gradient)
    kept = (got[1] != 0) * threshold_and_scale(dropout)[1]
    assert float((got[1] != 0).double().mean()) == pytest.approx(1 - dropout, abs=0.1)

    x, y, y_bias, weight, bias = exact = [t.detach().double().requires_grad_() for t in given]
    expected = F.layer_norm(x + (y + y_bias) * kept, (channels,), weight, bias)
    reference = torch.autograd.grad(expected, exact, gradient.double())
    assert_near(out, expected)
    for ours, theirs in zip(got, reference, strict=True):
        assert_near(ours, theirs)
