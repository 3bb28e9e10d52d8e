"""The residual stream, dropout and the norm in one pass, against float64."""

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
@pytest.mark.parametrize(
    ("n", "channels", "dropout"), [(5, 24, 0.0), (9, 100, 0.4), (300 if ON_GPU else 30, 17, 0.5)]
)
def test_residual_norm(
    n: int, channels: int, dropout: float, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    from batchformer.kernels.dropout import threshold_and_scale
    from batchformer.kernels.residual_norm import ResidualNorm

    if not ON_GPU:  # several rows of a program
        monkeypatch.setattr("batchformer.kernels.residual_norm.PROGRAMS", 4)
    torch.manual_seed(0)
    shapes = [(n, channels)] * 2 + [(channels,)] * 3
    given = [torch.randn(s, device=DEVICE, dtype=dtype, requires_grad=True) for s in shapes]
    out = ResidualNorm.apply(*given, dropout, seeds(), dtype)
    gradient = torch.randn_like(out)
    got = torch.autograd.grad(out, given, gradient)
    kept = (got[1] != 0) * threshold_and_scale(dropout)[1]
    assert float((got[1] != 0).double().mean()) == pytest.approx(1 - dropout, abs=0.1)

    x, y, y_bias, weight, bias = exact = [t.detach().double().requires_grad_() for t in given]
    expected = F.layer_norm(x + (y + y_bias) * kept, (channels,), weight, bias)
    reference = torch.autograd.grad(expected, exact, gradient.double())
    assert relative(out, expected) < TOLERANCE[dtype]
    for ours, theirs in zip(got, reference, strict=True):
        assert relative(ours, theirs) < TOLERANCE[dtype]
