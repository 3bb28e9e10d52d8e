"""The kernels against float64: interpreted on the CPU, in a process of their own, and compiled."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Case(NamedTuple):
    shape: tuple[int, int, int, int]
    residual: bool
    dtype: str = "float32"
    mean: float = 0.0
    merged_at_once: int | None = None

    @property
    def name(self) -> str:
        return "-".join(map(str, self))


#: Rows that fill no tile, several tiles per chunk, channels that are no power of two.
CASES = [
    Case((2, 16, 5, 7), False),
    Case((2, 16, 5, 7), True),
    Case((1, 64, 2, 3), False),
    Case((3, 16, 31, 31), True),
    Case((3, 16, 31, 31), False, merged_at_once=4),
    Case((3, 24, 13, 17), True),
    Case((2, 1, 5, 5), True),
    Case((3, 8, 6, 6), True, "bfloat16"),
    Case((3, 8, 6, 6), False, "bfloat16"),
    Case((3, 8, 9, 9), True, "float16"),
    Case((3, 8, 9, 9), False, "float16"),
    Case((3, 16, 31, 31), False, mean=1e4),
    Case((3, 16, 31, 31), True, mean=-1e4),
]
COMPILED = [
    *CASES,
    Case((2, 1000, 2, 3), True),
    *(Case((65, c, s, s), r, "bfloat16") for c, s in ((16, 32), (64, 8)) for r in (False, True)),
]
#: Half of the distance between neighbouring numbers of the type, and what float32 sums add.
ROUNDING = {"float32": 5e-6, "float16": 2**-11 + 5e-6, "bfloat16": 2**-8 + 5e-6}
#: The interpreter cuts off what does not fit bfloat16 instead of rounding it.
CUTTING = {**ROUNDING, "bfloat16": 2**-7 + 5e-6}
#: A mean held in float32 is off by up to 2^-24 of itself, which shifts what is normalised.
SHIFT = 2**-23
STEPS = 2


def error(value: Tensor | None, reference: Tensor | None) -> float:
    """The largest deviation, in units of the largest magnitude."""
    assert value is not None and reference is not None and value.shape == reference.shape
    reference = reference.double()
    return ((value.cpu().double() - reference).abs().max() / reference.abs().max()).item()


def measure(case: Case, device: str) -> dict[str, float]:
    """Errors of the result, the gradients and the running statistics against float64."""
    from batchformer.kernels import batch_norm

    with pytest.MonkeyPatch.context() as patch:
        if case.merged_at_once:
            patch.setattr(batch_norm, "MERGE_CHUNKS", case.merged_at_once)
        return _measure(case, device)


def _measure(case: Case, device: str) -> dict[str, float]:
    from batchformer.kernels.batch_norm import batch_norm_relu

    torch.manual_seed(0)
    dtype, channels = getattr(torch, case.dtype), case.shape[1]
    norm = nn.BatchNorm2d(channels, momentum=0.3)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    norm64 = copy.deepcopy(norm).double()
    norm.to(device)
    for _ in range(STEPS):
        norm.zero_grad()
        norm64.zero_grad()
        y, residual, dout = (torch.randn(case.shape) for _ in range(3))
        y = (y * torch.linspace(0.5, 2, channels).view(-1, 1, 1) + case.mean).to(dtype)
        residual, dout = residual.to(dtype), dout.to(dtype)
        y64, residual64 = y.double().requires_grad_(), residual.double().requires_grad_()
        out64 = norm64(y64) + residual64 if case.residual else norm64(y64)
        # A value within the error of zero may lie on either side: it takes no part.
        dout[out64.abs() < 1e-3 + 10 * abs(case.mean) * SHIFT] = 0
        out64 = F.relu(out64)
        out64.backward(dout.double())  # type: ignore[no-untyped-call]
        y, residual = (
            t.to(device).contiguous(memory_format=torch.channels_last).requires_grad_()
            for t in (y, residual)
        )
        out = batch_norm_relu(y, norm, residual if case.residual else None)
        out.backward(dout.to(device))  # type: ignore[no-untyped-call]
    assert out.dtype == dtype and out.is_contiguous(memory_format=torch.channels_last)
    assert y.grad is not None and y.grad.dtype == dtype
    assert norm.num_batches_tracked == STEPS
    errors = {
        "out": error(out, out64.detach()),
        "dy": error(y.grad, y64.grad),
        "dweight": error(norm.weight.grad, norm64.weight.grad),
        "dbias": error(norm.bias.grad, norm64.bias.grad),
        "running_mean": error(norm.running_mean, norm64.running_mean),
        "running_var": error(norm.running_var, norm64.running_var),
    }
    if case.residual:
        errors["dresidual"] = error(residual.grad, residual64.grad)
    return errors


def judge(errors: dict[str, float], case: Case, rounding: dict[str, float]) -> None:
    shift = abs(case.mean) * SHIFT
    assert errors["out"] <= rounding[case.dtype] + shift, errors
    assert errors["dy"] <= rounding[case.dtype] + shift, errors
    # The shift times the sum of gradients, which may exceed that of gradients times deviations.
    assert errors["dweight"] <= 5e-6 + 5 * shift, errors
    assert errors["dbias"] <= 5e-6, errors
    assert errors["running_mean"] <= 5e-6, errors
    # From sums of squares it would be off by (mean / deviation)^2 2^-24, here about 6.
    assert errors["running_var"] <= 5e-6 + 0.1 * shift, errors
    assert errors.get("dresidual", 0.0) == 0.0, errors


def nan_is_kept() -> bool:
    """Whether a NaN in one channel makes that channel NaN and no other."""
    from batchformer.kernels.batch_norm import batch_norm_relu

    y = torch.randn(2, 4, 3, 3)
    y[0, 1, 2, 2] = torch.nan
    out = batch_norm_relu(y, nn.BatchNorm2d(4)).isnan().transpose(0, 1).flatten(1)
    return bool(out[1].all()) and not bool(out[[0, 2, 3]].any())


@pytest.fixture(scope="module")
def interpreted() -> dict[str, Any]:
    pytest.importorskip("triton")
    pytest.importorskip("numpy")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    run = subprocess.run(
        [sys.executable, __file__], env=environment, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    found: dict[str, Any] = json.loads(run.stdout)
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_interpreted_against_float64(case: Case, interpreted: dict[str, Any]) -> None:
    judge(interpreted[case.name], case, CUTTING)


def test_nan_is_kept(interpreted: dict[str, Any]) -> None:
    assert interpreted["nan is kept"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("case", COMPILED, ids=lambda c: c.name)
def test_compiled_against_float64(case: Case) -> None:
    judge(measure(case, "cuda"), case, ROUNDING)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_captured_step_moves_the_running_statistics() -> None:
    from batchformer.kernels.batch_norm import batch_norm_relu

    y = torch.randn(4, 16, 8, 8, device="cuda").to(memory_format=torch.channels_last)
    captured, eager = (nn.BatchNorm2d(16, device="cuda") for _ in range(2))
    batch_norm_relu(y, nn.BatchNorm2d(16, device="cuda"))  # compiles
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        batch_norm_relu(y, captured)
    for _ in range(3):
        graph.replay()
        eager(y)
    assert captured.num_batches_tracked == 3
    torch.testing.assert_close(captured.running_mean, eager.running_mean)
    torch.testing.assert_close(captured.running_var, eager.running_var)


if __name__ == "__main__":
    found: dict[str, Any] = {case.name: measure(case, "cpu") for case in CASES}
    print(json.dumps({**found, "nan is kept": nan_is_kept()}))
