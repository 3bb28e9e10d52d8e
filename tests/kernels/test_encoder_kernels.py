"""The encoder's kernels against float64, in Triton's interpreter and on a GPU.

The interpreter is chosen when Triton is imported, so one test runs this file again in a process of
its own; there, and on a GPU, the others are not skipped.
"""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
ON_GPU = torch.cuda.is_available() and not INTERPRETED
DEVICE = torch.device("cuda" if ON_GPU else "cpu")
kernels = pytest.mark.skipif(not (INTERPRETED or ON_GPU), reason="runs in a process of its own")
TYPES = [torch.float32, torch.bfloat16, torch.float16] if ON_GPU else [torch.float32]
#: Relative error (norm of the difference over the norm) that a type may have.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 1e-3}


def test_in_the_interpreter() -> None:
    pytest.importorskip("triton")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-m",
        "gpu",
        __file__,
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout
    assert "skipped" not in done.stdout


def relative(a: Tensor, b: Tensor) -> float:
    a, b = a.detach().double(), b.detach().double()
    return float((a - b).norm() / b.norm())


def seeds(number: int = 123) -> Tensor:
    return torch.tensor([number], device=DEVICE)


def kept_weights(qkv: Tensor, heads: int, dropout: float) -> Tensor:
    """Which weights (heads, N, N) survive: seen by letting the values be unit vectors."""
    from batchformer.kernels.attention import SampleAttention

    n, width = len(qkv), qkv.shape[1] // 3 // heads
    kept = torch.zeros(heads, n, n, dtype=torch.bool, device=DEVICE)
    for start in range(0, n, width):
        stop = min(start + width, n)
        probe = qkv.detach().clone().view(n, 3, heads, width)
        probe[:, 2] = 0
        unit = torch.eye(stop - start, device=DEVICE, dtype=qkv.dtype)
        probe[start:stop, 2, :, : stop - start] = unit[:, None]
        seen = SampleAttention.apply(probe.view(n, -1), heads, dropout, seeds())
        kept[..., start:stop] = seen.view(n, heads, width).transpose(0, 1)[..., : stop - start] > 0
    return kept


@pytest.mark.gpu
@kernels
@pytest.mark.parametrize(
    ("case", "dtype", "keep"),
    list(
        product(
            [(13, 2, 8, 0.0), (300, 1, 16, 0.5), (27, 3, 5, 0.3), (8, 1, 4, 0.25)],
            TYPES,
            [True, False],
        )
    ),
)
def test_attention(
    case: tuple[int, int, int, float],
    dtype: torch.dtype,
    keep: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Values and gradients, with weights kept for the backward pass and without."""
    from batchformer.kernels import attention
    from batchformer.kernels.dropout import threshold_and_scale

    n, heads, width, dropout = case
    monkeypatch.setattr(attention, "KEPT_BUDGET", 2**40 if keep else 0)
    monkeypatch.setattr(attention, "BLOCK_BUDGET", heads * n * dtype.itemsize * 8 * 2)
    torch.manual_seed(0)
    qkv = torch.randn(n, 3 * heads * width, device=DEVICE, dtype=dtype, requires_grad=True)
    kept = kept_weights(qkv, heads, dropout)
    out = attention.SampleAttention.apply(qkv, heads, dropout, seeds())
    gradient = torch.randn_like(out)
    (got,) = torch.autograd.grad(out, qkv, gradient)

    exact = qkv.detach().double().requires_grad_()
    q, k, v = exact.view(n, 3, heads, width).permute(1, 2, 0, 3)
    weights = torch.softmax(q @ k.transpose(1, 2) / width**0.5, -1)
    mixed = (weights * kept * threshold_and_scale(dropout)[1]) @ v
    expected = mixed.transpose(0, 1).reshape(n, -1)
    (reference,) = torch.autograd.grad(expected, exact, gradient.double())
    assert relative(out, expected) < TOLERANCE[dtype]
    assert relative(got, reference) < TOLERANCE[dtype]
    rate = float(kept.double().mean())
    assert rate == pytest.approx(
        1 - dropout, abs=5 * (dropout * (1 - dropout) / kept.numel()) ** 0.5
    )


@pytest.mark.gpu
@kernels
def test_masks_are_independent_of_the_block_and_differ_by_head_row_and_seed() -> None:
    from batchformer.kernels.softmax import softmax_dropout_

    def mask(seed: int, rows: slice, n: int = 40) -> Tensor:
        part = torch.zeros(2, 40, n, device=DEVICE)[:, rows].contiguous()
        sums = torch.empty(2, 40, device=DEVICE)
        return softmax_dropout_(part, sums, seeds(seed), 0.5, rows.start) > 0

    whole = mask(1, slice(0, 40))
    assert torch.equal(mask(1, slice(8, 24)), whole[:, 8:24])
    assert not torch.equal(mask(2, slice(0, 40)), whole)
    flat = whole.flatten(0, 1).double() - 0.5
    correlation = (flat @ flat.T / 10).fill_diagonal_(0)  # 1 for equal rows
    assert float(correlation.abs().max()) < 0.9


@pytest.mark.gpu
@kernels
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    ("n", "channels", "dropout"), [(5, 24, 0.0), (9, 100, 0.4), (300, 17, 0.5)]
)
def test_residual_norm(n: int, channels: int, dropout: float, dtype: torch.dtype) -> None:
    from batchformer.kernels.dropout import threshold_and_scale
    from batchformer.kernels.residual_norm import ResidualNorm

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


@pytest.mark.gpu
@kernels
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("n", "channels", "dropout"), [(5, 24, 0.0), (21, 300, 0.4)])
def test_relu_dropout(n: int, channels: int, dropout: float, dtype: torch.dtype) -> None:
    from batchformer.kernels.dropout import threshold_and_scale
    from batchformer.kernels.relu_dropout import ReluDropout

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


@pytest.mark.gpu
@pytest.mark.skipif(not ON_GPU, reason="needs a CUDA device")
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("channels", [512, 2048])
def test_the_whole_layer_is_torchs(channels: int, autocast: bool) -> None:
    """Without dropout: within 1.5 times the error that torch's own layer has in bf16."""
    from batchformer.encoder import EncoderWeights, batch_former

    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(channels, 4, channels, dropout=0.0, device=DEVICE)
    x = torch.randn(2048, channels, device=DEVICE)
    gradient = torch.randn_like(x)

    def run(ours: bool, dtype: torch.dtype) -> list[Tensor]:
        layer.to(torch.float32 if autocast and dtype == torch.bfloat16 else dtype)
        kind = torch.float32 if autocast and dtype == torch.bfloat16 else dtype
        given = x.detach().to(kind).requires_grad_()
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast and dtype == torch.bfloat16):
            weights = [EncoderWeights.of(layer)]
            out = batch_former(given, weights) if ours else layer(given[:, None])[:, 0]
        wanted = [given, *layer.parameters()]
        found = torch.autograd.grad(out, wanted, gradient.to(out.dtype))
        return [out.detach(), *found]

    exact = run(ours=False, dtype=torch.float64)
    theirs = run(ours=False, dtype=torch.bfloat16)
    mine = run(ours=True, dtype=torch.bfloat16)
    for ours, stock, reference in zip(mine, theirs, exact, strict=True):
        assert relative(ours, reference) < max(1.5 * relative(stock, reference), 1e-3)
