"""The choice between kernels and torch, on a machine that needs neither a GPU nor Triton."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from batchformer.kernels import disabled
from batchformer.kernels.available import unsupported_reason

X = torch.zeros(2, 16, 4, 4, dtype=torch.bfloat16)


def test_the_cpu_is_no_place_for_kernels() -> None:
    assert unsupported_reason(X) == "the tensor is not on a CUDA device"


def test_disabled_within_its_context_and_only_there() -> None:
    before = unsupported_reason(X)
    with pytest.raises(KeyError), disabled():
        with disabled():
            assert unsupported_reason(X) == "kernels are disabled"
        assert unsupported_reason(X) == "kernels are disabled"
        raise KeyError
    assert unsupported_reason(X) == before


def test_transforms_and_tracers() -> None:
    seen = []

    def note(x: Tensor) -> Tensor:
        seen.append(unsupported_reason(x))
        return x + 0

    torch.func.vmap(note)(torch.zeros(2, 3))
    torch.func.jvp(note, (torch.zeros(3),), (torch.ones(3),))
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(torch.zeros(3), torch.ones(3))  # type: ignore[no-untyped-call]
        note(dual)
    torch.jit.trace(note, torch.zeros(3), check_trace=False)  # type: ignore[no-untyped-call]
    transform = "a transform of torch.func is active"
    tracing = "the model is being compiled or traced"
    assert seen == [transform, transform, "forward-mode differentiation is active", tracing]


def test_compilation_sees_only_operations_of_torch() -> None:
    def choose(x: Tensor) -> Tensor:
        assert unsupported_reason(x) == "the model is being compiled or traced"
        return x + 1

    # fullgraph: the choice must not break the graph.
    torch.compile(choose, backend="eager", fullgraph=True)(X)


def test_stand_ins_for_tensors() -> None:
    class Other(Tensor):
        pass

    assert unsupported_reason(X.as_subclass(Other)) == "Other is not a plain tensor"
    assert unsupported_reason(nn.Parameter(X)) == "the tensor is not on a CUDA device"


@pytest.mark.gpu
def test_nothing_prevents_compiled_kernels_on_a_gpu() -> None:
    pytest.importorskip("triton")
    assert unsupported_reason(X.cuda()) is None
