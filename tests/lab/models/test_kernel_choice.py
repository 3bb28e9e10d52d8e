"""The choice between torch and the kernels of convolutions and norms, without a GPU or Triton."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from batchformer.kernels import available
from batchformer.lab.models import networks
from batchformer.lab.models.kernels.available import (
    conv_unsupported_reason,
    norm_unsupported_reason,
)

KERNELS = "batchformer.lab.models.kernels"
X = torch.zeros(2, 16, 4, 4, dtype=torch.bfloat16).to(memory_format=torch.channels_last)


@pytest.fixture
def usable_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(available, "unsupported_reason", lambda x: None)


def conv(**options: object) -> nn.Conv2d:
    arguments = {"padding": 1, "bias": False, "dtype": torch.bfloat16, **options}
    return nn.Conv2d(16, 16, 3, **arguments)  # type: ignore[arg-type]


def test_compilation_sees_the_operations_of_torch_alone() -> None:
    norm, layer = nn.BatchNorm2d(16), conv()

    def choose(x: Tensor) -> Tensor:
        conv_reason, norm_reason = (
            conv_unsupported_reason(x, layer),
            norm_unsupported_reason(x, norm),
        )
        assert conv_reason == norm_reason == "the model is being compiled or traced"
        return x + 1

    # fullgraph: what chooses must not break the graph.
    torch.compile(choose, backend="eager", fullgraph=True)(X)


@pytest.mark.parametrize(
    ("layer", "x", "reason"),
    [
        (conv(), X, None),
        (conv(padding="same"), X, None),
        (conv(stride=2), X, "stride 1"),
        (conv(padding=0), X, "pad"),
        (conv(padding_mode="circular"), X, "pad"),
        (conv(bias=True), X, "bias"),
        (conv(groups=2), X, "groups"),
        (conv(dilation=2, padding=2), X, "stride 1"),
        (conv(dtype=torch.float32), X, "differ in type"),
        (conv(dtype=torch.float32), X.float(), "half-precision"),
        (nn.Conv2d(3, 16, 3, padding=1, bias=False), X[:, :3], "channels other than 16, 32, 64"),
        (nn.Conv2d(16, 16, 1, bias=False), X, "not 3x3"),
        (conv(), X[:, :8], "in_channels"),
        (conv(), X[0], "in_channels"),
        (conv(), X[:0], "no pixels"),
        (conv(), X.contiguous(), "channels-last"),
        (conv().eval(), X, "training"),
        (nn.LazyConv2d(16, 3), X, "LazyConv2d is not Conv2d itself"),
    ],
)
@pytest.mark.usefixtures("usable_device")
def test_convolutions(layer: nn.Conv2d, x: Tensor, reason: str | None) -> None:
    found = conv_unsupported_reason(x, layer)
    assert found is None if reason is None else reason in str(found)


@pytest.mark.usefixtures("usable_device")
def test_autocast_decides_the_type_of_a_convolution() -> None:
    layer = conv(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        assert conv_unsupported_reason(X.float(), layer) is None
        assert conv_unsupported_reason(X, layer) is None


def hooked(register: Callable[[nn.Module], object]) -> nn.BatchNorm2d:
    norm = nn.BatchNorm2d(16)
    register(norm)
    return norm


@pytest.mark.parametrize(
    ("norm", "y", "residual", "reason"),
    [
        (nn.BatchNorm2d(16), X, None, None),
        (nn.BatchNorm2d(16), X, X.contiguous(), None),
        (nn.BatchNorm2d(16, affine=False), X, None, "affine"),
        (nn.BatchNorm2d(16, track_running_stats=False), X, None, "track"),
        (nn.BatchNorm2d(16, momentum=None), X, None, "momentum"),
        (nn.BatchNorm2d(16).bfloat16(), X, None, "float32"),
        (nn.BatchNorm2d(16).eval(), X, None, "training"),
        (nn.BatchNorm2d(8), X, None, "num_features"),
        (nn.BatchNorm2d(16), X[:1, :, :1, :1], None, "more than one value"),
        (nn.BatchNorm2d(16), X.float(), None, "half-precision"),
        (nn.BatchNorm2d(16), X.contiguous(), None, "channels-last"),
        (nn.BatchNorm2d(16), X, X.float(), "residual"),
        (nn.BatchNorm2d(16), X, X[:1], "residual"),
        (nn.BatchNorm2d(2000), X[:, :1].expand(2, 2000, 4, 4), None, "1024"),
        (nn.SyncBatchNorm(16), X, None, "SyncBatchNorm is not"),
        (hooked(lambda m: m.register_forward_hook(print)), X, None, "hooks"),
        (hooked(lambda m: m.register_forward_pre_hook(print)), X, None, "hooks"),
        (hooked(lambda m: m.register_full_backward_hook(print)), X, None, "hooks"),
    ],
)
@pytest.mark.usefixtures("usable_device")
def test_normalisations(
    norm: nn.BatchNorm2d, y: Tensor, residual: Tensor | None, reason: str | None
) -> None:
    found = norm_unsupported_reason(y, norm, residual)
    assert found is None if reason is None else reason in str(found)


def test_a_model_on_the_cpu_never_imports_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (f"{KERNELS}.conv3x3", f"{KERNELS}.batch_norm", "triton", "triton.language"):
        monkeypatch.setitem(sys.modules, name, None)  # importing it is an error
    spec = importlib.util.spec_from_file_location("fresh_networks", networks.__file__)
    assert spec and spec.loader
    fresh = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fresh)
    fresh.resnet32(10, depth=8)(torch.zeros(2, 3, 8, 8)).sum().backward()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_nothing_prevents_compiled_kernels_on_a_gpu() -> None:
    pytest.importorskip("triton")
    assert conv_unsupported_reason(X.cuda(), conv().cuda()) is None
    assert norm_unsupported_reason(X.cuda(), nn.BatchNorm2d(16).cuda()) is None
