"""Every kernel compiles for a GPU as it would be launched, on a machine with or without one.

The interpreter runs Python. What the compiler rejects (a type, a global, a shape) shows here, in
Triton's passes. LLVM and ptxas take four times as long and run in the slow tests.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

triton = pytest.importorskip("triton", minversion="3.3")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("nothing is compiled in the interpreter", allow_module_level=True)

import triton.language as tl  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402
from triton.runtime.jit import JITFunction, mangle_type  # noqa: E402

from batchformer import kernels  # noqa: E402
from batchformer.lab.models import kernels as lab_kernels  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")
SEEDS = torch.arange(4)


def channels_last(*shape: int) -> Tensor:
    made = torch.zeros(shape, dtype=torch.bfloat16).contiguous(memory_format=torch.channels_last)
    return made.requires_grad_()


def backward(out: Tensor) -> None:
    out.backward(torch.zeros_like(out))  # type: ignore[no-untyped-call]


def convolutions() -> None:
    from batchformer.lab.models.kernels.conv3x3 import conv3x3

    for channels in (16, 64):
        weight = torch.zeros(channels, channels, 3, 3, requires_grad=True)
        backward(conv3x3(channels_last(2, channels, 8, 8), weight)[0])


def normalisations() -> None:
    from batchformer.lab.models.kernels.batch_norm import batch_norm_relu

    for residual in (None, channels_last(4, 16, 8, 8)):
        backward(batch_norm_relu(channels_last(4, 16, 8, 8), nn.BatchNorm2d(16), residual))


def attention() -> None:
    from batchformer.kernels.attention import SampleAttention

    for n in (24, 1032):
        qkv = torch.zeros(n, 3 * 64, dtype=torch.bfloat16, requires_grad=True)
        backward(SampleAttention.apply(qkv, 4, 0.5, SEEDS[:1]))


def pairs() -> None:
    from batchformer.lab.models.kernels.pairwise import scores, sums_above_zero

    a, b = torch.zeros(40, 96), torch.zeros(10, 96)
    scores(a, b, torch.zeros(96), 0.2)
    sums_above_zero(a, b, torch.zeros(40, 10))
    sums_above_zero(b, a, torch.zeros(40, 10).T)


WORKS: tuple[Callable[[], None], ...] = (convolutions, normalisations, attention, pairs)


def compiled(target: Any) -> set[str]:
    """Names of the kernels that were launched, each of which was compiled."""
    found: set[str] = set()
    seen: set[Any] = set()

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        given = dict(zip(self.arg_names, args, strict=False))
        given |= {name: options.pop(name) for name in self.arg_names if name in options}
        fixed = {p.name for p in self.params if p.is_constexpr} | {
            name for name, value in given.items() if value is None
        }
        signature = {
            name: "constexpr" if name in fixed else mangle_type(given[name])
            for name in self.arg_names
        }
        constants = {(self.arg_names.index(name),): given[name] for name in sorted(fixed)}
        key = (self.fn, str(signature), str(constants), str(options))
        if key not in seen:
            seen.add(key)
            triton.compile(ASTSource(self, signature, constants), target, options)
        found.add(f"{self.fn.__module__.rpartition('.')[2]}.{self.fn.__name__}")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JITFunction, "run", compile_only)
        for work in WORKS:
            work()
    return found


def launched() -> set[str]:
    """All kernels that our sources launch."""
    return {
        f"{file.stem}.{name}"
        for folder in (kernels, lab_kernels)
        for file in Path(folder.__path__[0]).glob("*.py")
        for name in re.findall(r"^ +(_\w+)\[.*\]\(", file.read_text(), re.MULTILINE)
    }


class Lowered(Exception):
    """Triton's own passes have ended."""


@pytest.fixture
def triton_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile to Triton's representation for the GPU, without LLVM and ptxas."""
    from triton.backends.nvidia.compiler import CUDABackend

    compile_all = triton.compile

    def stop(*_: Any) -> None:
        raise Lowered

    def compile_some(*given: Any) -> None:
        with pytest.raises(Lowered):
            compile_all(*given)

    monkeypatch.setattr(CUDABackend, "make_llir", staticmethod(stop))
    monkeypatch.setattr(triton, "compile", compile_some)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


@pytest.mark.usefixtures("triton_alone")
def test_triton_accepts_every_kernel() -> None:
    assert compiled(GPUTarget("cuda", 90, 32)) == launched()
    assert len(launched()) == 14


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 90])
def test_every_kernel_compiles(capability: int) -> None:
    assert compiled(GPUTarget("cuda", capability, 32)) == launched()


def test_what_the_compiler_refuses_is_an_error() -> None:
    source = ASTSource(reads_a_global, {"x_ptr": "*fp32"})
    with pytest.raises(Exception, match="CAPABILITY"):
        triton.compile(source, GPUTarget("cuda", 90, 32))


@triton.jit
def reads_a_global(x_ptr):  # type: ignore[no-untyped-def]
    tl.store(x_ptr, CAPABILITY)


#: A plain global, which the interpreter would read and the compiler does not.
CAPABILITY = 90
