"""The convolution, its moments and its gradients against float64, however they are split."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

pytest.importorskip("triton")

from batchformer.lab.models.kernels.available import CONV_CHANNELS
from batchformer.lab.models.kernels.conv3x3 import (
    FORWARD,
    INPUT_GRADIENT,
    WEIGHT_GRADIENT,
    Tile,
    conv3x3,
    weight_gradient,
)

KERNELS = "batchformer.lab.models.kernels.conv3x3"

ON_GPU = torch.cuda.is_available()


class Case(NamedTuple):
    n: int
    cin: int
    cout: int
    height: int
    width: int
    dtype: str = "float32"
    channels_last_weight: bool = True
    half_weight: bool = False

    @property
    def name(self) -> str:
        return "-".join(map(str, self))


#: Pixels that fill no tile, widths odd and even, several tiles per program, all channel counts.
CASES = [
    Case(1, 16, 16, 5, 7),
    Case(3, 16, 16, 1, 2),
    Case(5, 16, 16, 16, 16),
    Case(2, 16, 32, 4, 6),
    Case(2, 32, 16, 5, 5),
    Case(1, 32, 32, 9, 8),
    Case(2, 64, 64, 5, 3),
    Case(2, 16, 16, 6, 4, "float16"),
    Case(2, 16, 16, 6, 6, "float32", channels_last_weight=False),
    Case(2, 16, 16, 4, 4, "float16", half_weight=True),
]
COMPILED = [
    *(c._replace(dtype=t) for c in CASES for t in ("bfloat16", "float16")),
    *(Case(33, c, c, s, s, "bfloat16") for c, s in ((16, 32), (32, 16), (64, 8))),
    Case(3, 32, 64, 4, 4, "bfloat16"),
]
#: Half of the distance between neighbouring numbers of the type, and what float32 sums add.
ROUNDING = {"float32": 2e-6, "float16": 2**-11 + 2e-6, "bfloat16": 2**-8 + 2e-6}


def error(value: Tensor | None, reference: Tensor | None) -> float:
    """The largest deviation, in units of the largest magnitude."""
    assert value is not None and reference is not None and value.shape == reference.shape
    return ((value.cpu().double() - reference).abs().max() / reference.abs().max()).item()


def measure(case: Case, device: str) -> dict[str, float]:
    """Errors of the result, its moments and the gradients against float64."""
    torch.manual_seed(0)
    dtype = getattr(torch, case.dtype)
    x = torch.randn(case.n, case.cin, case.height, case.width).to(dtype)
    weight = torch.randn(case.cout, case.cin, 3, 3).to(dtype)
    dy = torch.randn(case.n, case.cout, case.height, case.width).to(dtype)
    x64, weight64 = x.double().requires_grad_(), weight.double().requires_grad_()
    y64 = F.conv2d(x64, weight64, padding=1)
    y64.backward(dy.double())  # type: ignore[no-untyped-call]

    layout = torch.channels_last if case.channels_last_weight else torch.contiguous_format
    weight = weight.to(device, dtype if case.half_weight else torch.float32)
    weight = weight.contiguous(memory_format=layout).requires_grad_()
    x = x.to(device).contiguous(memory_format=torch.channels_last).requires_grad_()
    y, moments = conv3x3(x, weight)
    y.backward(dy.to(device))  # type: ignore[no-untyped-call]
    assert x.grad is not None and weight.grad is not None
    assert y.dtype == dtype and y.is_contiguous(memory_format=torch.channels_last)
    assert weight.grad.dtype == weight.dtype and weight.grad.stride() == weight.stride()

    rows = y.detach().permute(0, 2, 3, 1).reshape(-1, case.cout).cpu().double()
    chunks = torch.split(rows, moments.rows)
    means = torch.stack([chunk.mean(0) for chunk in chunks], 1)
    squares = torch.stack([(c - c.mean(0)).square().sum(0) for c in chunks], 1)
    return {
        "y": error(y, y64.detach()),
        "dx": error(x.grad, x64.grad),
        "dw": error(weight.grad, weight64.grad),
        "means": error(moments.parts[0], means),
        "squares": error(moments.parts[1], squares),
    }


def judge(errors: dict[str, float], case: Case) -> None:
    bound = ROUNDING[case.dtype]
    assert errors["y"] <= bound and errors["dx"] <= bound, errors
    assert errors["dw"] <= (bound if case.half_weight else ROUNDING["float32"]), errors
    assert errors["means"] <= 2e-6 and errors["squares"] <= 2e-6, errors


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_interpreted_against_float64(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    if ON_GPU:
        pytest.skip("compiled, products of float32 are not these")
    # Few large programs: each costs the interpreter milliseconds.
    monkeypatch.setattr(f"{KERNELS}.SUM_COLUMNS", 8)
    # Parts of the weight's gradient are added in several rounds.
    monkeypatch.setattr(f"{KERNELS}.SUM_PARTS", 1)
    judge(measure(case, "cpu"), case)


@pytest.mark.gpu
@pytest.mark.parametrize("case", COMPILED, ids=lambda c: c.name)
def test_compiled_against_float64(case: Case) -> None:
    judge(measure(case, "cuda"), case)


@pytest.mark.gpu
def test_autocast_casts_the_input_of_compiled_kernels() -> None:
    x = torch.randn(2, 16, 8, 8, device="cuda").to(memory_format=torch.channels_last)
    weight = torch.randn(16, 16, 3, 3, device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        y, _ = conv3x3(x.requires_grad_(), weight)
    y.sum().backward()  # type: ignore[no-untyped-call]
    assert y.dtype == torch.bfloat16 and x.grad is not None and x.grad.dtype == torch.float32


@pytest.mark.gpu
def test_the_same_input_compiled_gives_the_same_bits() -> None:
    x, dy = (torch.randn(64, 16, 32, 32, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    weight = torch.empty(16, 16, 3, 3, device="cuda")
    first = weight_gradient(x, dy, weight)
    assert all(torch.equal(weight_gradient(x, dy, weight), first) for _ in range(10))


def test_pairs_need_an_even_width() -> None:
    tile = Tile(64, 4, 2, 4, 1)
    assert tile.fitted(8) == tile
    assert tile.fitted(7) == tile._replace(group=1)
    assert Tile(64, 1, 1, 4, 1).fitted(7).group == 1


def test_every_number_of_channels_has_tiles() -> None:
    for table in (FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT):
        assert set(table) == set(CONV_CHANNELS)
