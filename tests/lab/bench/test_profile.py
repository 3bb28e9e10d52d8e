"""Kernels by family: names as they are seen on a GPU, and what fills the table."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch._C._autograd import DeviceType

from batchformer.lab.bench.measure import BenchSettings, Table
from batchformer.lab.bench.profile import CONVOLUTION, by_family, family, fill, measure, profiled

FORWARD, DATA, WEIGHT = CONVOLUTION


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc",
            FORWARD,
        ),
        ("sm80_xmma_dgrad_implicit_gemm_indexed_bf16bf16_bf16f32", DATA),
        ("cutlass__5x_cudnn::Kernel<cutlass_tensorop_bf16_s16816wgrad_optimized>", WEIGHT),
        ("_weight_gradient", WEIGHT),
        ("_sum_parts", WEIGHT),
        ("void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, int, 512, true, 1, true>", "norm"),
        ("void at::native::batch_norm_collect_statistics_channels_last_kernel", "norm"),
        ("_gradient_sums", "norm"),
        ("_merge_sums", "norm"),
        ("nvjet_hsh_64x8_64x16_4x1_v_bz_TNN", "matrix"),
        ("void at::native::multi_tensor_apply_kernel<FusedSgdMathFunctor<float, 3>>", "optimizer"),
        ("void at::native::(anonymous namespace)::cunn_SoftMaxForwardSmem", "attention"),
        ("Memcpy DtoD (Device -> Device)", "copies"),
        ("void at::native::unrolled_elementwise_kernel<direct_copy_kernel_cuda>", "copies"),
        ("void at::native::vectorized_elementwise_kernel<AddFunctor>", "the rest"),
    ],
)
def test_families(name: str, expected: str) -> None:
    assert expected in family(name)


def test_our_convolution_is_a_gradient_in_the_backward_pass() -> None:
    step = [("_product", 1.0), ("softmax_backward", 2.0), ("_product", 4.0), ("FusedSgd", 8.0)]
    found = by_family(step * 2)
    assert found[FORWARD] == 2 and found[DATA] == 8 and found["optimizer"] == 16


def test_rows_add_up_to_the_step() -> None:
    table = Table("profile", "", ("kernels", "with", "%", "without", "adds"), {})
    kernels = {"with": {FORWARD: 60.0, "the rest": 20.0}, "without": {FORWARD: 50.0}}
    fill(table, kernels, {"with": 100.0, "without": 60.0})
    assert table.rows == [
        (FORWARD, 60.0, 60.0, 50.0, 10.0),
        ("the rest", 20.0, 20.0, 0.0, 20.0),
        ("idle", 20.0, 20.0, 10.0, 10.0),
        ("the step", 100.0, 100.0, 60.0, 40.0),
    ]


class FakeProfile:
    found: ClassVar[list[Any]] = []

    def __init__(self, activities: object) -> None: ...
    def __enter__(self) -> FakeProfile:
        return self

    def __exit__(self, *_: object) -> None: ...
    def events(self) -> list[Any]:
        return self.found


def event(name: str, start: float, length: float, device: DeviceType) -> Any:
    span = SimpleNamespace(start=start, elapsed_us=lambda: length)
    return SimpleNamespace(name=name, time_range=span, device_type=device)


def test_kernels_are_taken_in_the_order_they_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.profiler, "profile", FakeProfile)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    calls: list[int] = []
    subject: Any = lambda: calls.append(1)  # noqa: E731
    with pytest.raises(RuntimeError, match="saw no kernels"):
        profiled(subject, 2)
    FakeProfile.found = [
        event("late", 9.0, 4.0, DeviceType.CUDA),
        event("aten::host", 0.0, 99.0, DeviceType.CPU),
        event("early", 1.0, 2.0, DeviceType.CUDA),
    ]
    calls.clear()
    assert profiled(subject, 2) == [("early", 1.0), ("late", 2.0)] and len(calls) == 2


def test_without_a_gpu_it_says_so() -> None:
    with pytest.raises(RuntimeError, match="profile needs a CUDA device"):
        measure(BenchSettings(torch.device("cpu")))
