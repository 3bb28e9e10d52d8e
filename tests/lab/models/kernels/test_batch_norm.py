"""Batch normalisation with addition and ReLU, whole and in its parts, against float64."""

from __future__ import annotations

import copy
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

pytest.importorskip("triton")

from batchformer.lab.models.kernels import batch_norm

ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_GPU else "cpu")


class Case(NamedTuple):
    shape: tuple[int, int, int, int]
    residual: bool
    dtype: str = "float32"
    mean: float = 0.0
    merged_at_once: int | None = None

    @property
    def name(self) -> str:
        return "-".join(map(str, self))


#: The side of an image that has several chunks, of several tiles each.
SIDE, AT_ONCE = (31, 4) if ON_GPU else (17, 2)
#: Rows that fill no tile, several tiles per chunk, channels that are no power of two.
CASES = [
    Case((2, 16, 5, 7), False),
    Case((2, 16, 5, 7), True),
    Case((1, 64, 2, 3), False),
    Case((3, 16, SIDE, SIDE), True),
    Case((3, 16, SIDE, SIDE), False, merged_at_once=AT_ONCE),
    Case((3, 24, 13, 17), True),
    Case((2, 1, 5, 5), True),
    Case((3, 8, 6, 6), True, "bfloat16"),
    Case((3, 8, 6, 6), False, "bfloat16"),
    Case((3, 8, 9, 9), True, "float16"),
    Case((3, 8, 9, 9), False, "float16"),
    Case((3, 16, SIDE, SIDE), False, mean=1e4),
    Case((3, 16, SIDE, SIDE), True, mean=-1e4),
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
#: The second begins with statistics that have moved; tests of statistics see that alone.
STEPS = 2 if ON_GPU else 1


def error(value: Tensor | None, reference: Tensor | None) -> float:
    """The largest deviation, in units of the largest magnitude."""
    assert value is not None and reference is not None and value.shape == reference.shape
    reference = reference.double()
    return ((value.cpu().double() - reference).abs().max() / reference.abs().max()).item()


def measure(case: Case, device: str) -> dict[str, float]:
    """Errors of the result, the gradients and the running statistics against float64."""
    with pytest.MonkeyPatch.context() as patch:
        if not ON_GPU:
            patch.setattr(batch_norm, "SUM_PROGRAMS", 2)
        if case.merged_at_once:
            patch.setattr(batch_norm, "MERGE_CHUNKS", case.merged_at_once)
        return _measure(case, device)


def _measure(case: Case, device: str) -> dict[str, float]:
    torch.manual_seed(0)
    dtype, channels = getattr(torch, case.dtype), case.shape[1]
    norm = nn.BatchNorm2d(channels, eps=1e-3, momentum=0.3)
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
        out = batch_norm.batch_norm_relu(y, norm, residual if case.residual else None)
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


@pytest.mark.gpu
def test_nan_stays_in_its_channel() -> None:
    y = torch.randn(2, 4, 3, 3, device=DEVICE)
    y[0, 1, 2, 2] = torch.nan
    norm = nn.BatchNorm2d(4, device=DEVICE)
    out = batch_norm.batch_norm_relu(y, norm).isnan().transpose(0, 1).flatten(1)
    assert out[1].all() and not out[[0, 2, 3]].any()


@pytest.mark.gpu
@pytest.mark.parametrize("case", COMPILED if ON_GPU else CASES, ids=lambda c: c.name)
def test_against_float64(case: Case) -> None:
    judge(measure(case, DEVICE.type), case, ROUNDING if ON_GPU else CUTTING)


@pytest.mark.gpu
def test_a_captured_step_of_compiled_kernels_moves_the_running_statistics() -> None:
    y = torch.randn(4, 16, 8, 8, device="cuda").to(memory_format=torch.channels_last)
    captured, eager = (nn.BatchNorm2d(16, device="cuda") for _ in range(2))
    batch_norm.batch_norm_relu(y, nn.BatchNorm2d(16, device="cuda"))  # compiles
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        batch_norm.batch_norm_relu(y, captured)
    for _ in range(3):
        graph.replay()
        eager(y)
    assert captured.num_batches_tracked == 3
    torch.testing.assert_close(captured.running_mean, eager.running_mean)
    torch.testing.assert_close(captured.running_var, eager.running_var)


def test_channels_are_padded_and_rows_fill_the_tile() -> None:
    assert batch_norm.shape_of(torch.zeros(2, 24, 3, 5), 2048) == (24, 30, 32, 64)
    assert batch_norm.shape_of(torch.zeros(2, 1000, 1, 1), 512) == (1000, 2, 1024, 1)


@given(st.integers(1, 10**6), st.sampled_from([1, 16, 128]))
def test_chunks_hold_every_row_once(pixels: int, rows: int) -> None:
    tiles, chunks = batch_norm.chunks_of(pixels, rows, torch.device("cpu"))
    assert (chunks - 1) * tiles * rows < pixels <= chunks * tiles * rows
    assert chunks <= 16, "as many programs as the device has room for"


@given(st.integers(1, 10**5))
def test_chunks_are_merged_by_a_power_of_two(chunks: int) -> None:
    found = batch_norm.merged_at_once(chunks)
    assert found & (found - 1) == 0 and found <= batch_norm.MERGE_CHUNKS
    assert found >= min(chunks, batch_norm.MERGE_CHUNKS)
