"""Every path against a float64 loop over samples, and the choice among them."""

from __future__ import annotations

import math
from typing import Any, get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._dynamo.testing import EagerAndRecordGraphs
from torch._subclasses.fake_tensor import FakeTensorMode

from batchformer import kernels
from batchformer.nn import attention as module_under_test
from batchformer.nn.attention import (
    Attend,
    Path,
    attention,
    choose_path,
    inspectable_attention,
    split_heads,
)

CUDA, CPU = torch.device("cuda"), torch.device("cpu")
ON_CPU: list[Path] = ["explicit", "fused", "blockwise"]


def brute_force(
    qkv: Tensor, heads: int, self_only: bool = False, visible: list[int] | None = None
) -> Tensor:
    """One row at a time, in float64, without a softmax function."""
    q, k, v = split_heads(qkv.double(), heads)
    out = torch.zeros_like(q)
    for index in torch.cartesian_prod(*(torch.arange(s) for s in q.shape[:3])).tolist():
        length, head, i = index
        keys = [i] if self_only else visible or list(range(k.shape[2]))
        scores = [float(q[length, head, i] @ k[length, head, j]) for j in keys]
        exps = [math.exp(s / math.sqrt(q.shape[-1]) - max(scores)) for s in scores]
        for j, e in zip(keys, exps, strict=True):
            out[length, head, i] += e / sum(exps) * v[length, head, j]
    return out.transpose(1, 2).flatten(2)


@settings(max_examples=40, deadline=None)
@given(
    length=st.integers(1, 2),
    heads=st.integers(1, 3),
    n=st.integers(1, 6),
    width=st.integers(1, 5),
    attend=st.sampled_from(get_args(Attend)),
    path=st.sampled_from([None, *ON_CPU]),
)
def test_equals_brute_force(
    length: int, heads: int, n: int, width: int, attend: Attend, path: Path | None
) -> None:
    if path == "fused" and attend == "self":
        return  # never chosen: the fused kernels have no diagonal
    qkv = torch.randn(length, n, 3 * heads * width)
    out = attention(qkv, heads, attend=attend, path=path)
    expected = brute_force(qkv, heads, attend == "self")
    torch.testing.assert_close(out.double(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("path", [None, "explicit", "blockwise"])
@pytest.mark.parametrize(
    ("attend", "seen"),
    [("batch", [[0, 2, 3, 5]]), ("self", [[0, 2, 3, 5]]), ("batch", [[0, 2, 5], [1, 2, 3, 4, 6]])],
)
def test_nobody_attends_to_hidden_samples(
    attend: Attend, seen: list[list[int]], path: Path | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same at all positions, or others at each. Hidden samples still attend to visible ones."""
    monkeypatch.setattr(module_under_test, "BLOCK_BUDGET", 4 * 2 * 2 * 7 * 3)  # three rows
    qkv = torch.randn(2, 7, 24)
    visible = torch.tensor([[sample in part for sample in range(7)] for part in seen]).squeeze(0)
    out = attention(qkv, 2, attend=attend, path=path, visible=visible)
    by_position = zip(qkv.split(1), (seen * 2)[:2], strict=True)
    expected = [brute_force(part, 2, attend == "self", keys) for part, keys in by_position]
    torch.testing.assert_close(out.double(), torch.cat(expected), atol=1e-5, rtol=1e-5)


def test_a_path_that_masks_is_chosen_for_hidden_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module_under_test, "EXPLICIT_BUDGET", 0)
    qkv, visible = torch.randn(1, 5, 24), torch.tensor([True, True, False, True, False])
    out = attention(qkv, 2, visible=visible)  # without a mask this would be the fused path
    expected = brute_force(qkv, 2, visible=[0, 1, 3])
    torch.testing.assert_close(out.double(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("path", ["fused", "blockwise"])
def test_paths_agree_on_gradients(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module_under_test, "BLOCK_BUDGET", 4 * 2 * 4 * 33 * 5)  # five rows
    qkv = torch.randn(2, 33, 96, requires_grad=True)
    explicit = attention(qkv, 4, path="explicit")
    other = attention(qkv, 4, path=path)
    torch.testing.assert_close(other, explicit, atol=1e-5, rtol=1e-5)
    weight = torch.randn_like(other)
    ours, theirs = (torch.autograd.grad((y * weight).sum(), qkv)[0] for y in (other, explicit))
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("attend", ["batch", "self"])
def test_blocks_drop_the_same_weights_in_the_backward_pass(
    attend: Attend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The output is linear in v, so its change along v's gradient is exact: one mask for both."""
    monkeypatch.setattr(module_under_test, "BLOCK_BUDGET", 4 * 2 * 24 * 7)
    qkv = torch.randn(1, 24, 24, dtype=torch.float64, requires_grad=True)

    def loss(values: Tensor) -> Tensor:
        torch.manual_seed(3)
        full = torch.cat((qkv[..., :16].detach(), values), -1)
        return attention(full, 2, dropout=0.5, attend=attend, path="blockwise").square().sum()

    values = qkv[..., 16:].detach().requires_grad_()
    assert torch.autograd.gradcheck(loss, values, fast_mode=True)


def test_blocks_store_less_than_all_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module_under_test, "BLOCK_BUDGET", 2**16)
    largest = 0

    def note(saved: Tensor) -> Tensor:
        nonlocal largest
        largest = max(largest, saved.numel())
        return saved

    qkv = torch.randn(1, 300, 24, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda saved: saved):
        attention(qkv, 2, dropout=0.1, path="blockwise")
    assert largest < 300 * 300 < 2**16 * 4


def test_weights_sum_to_one_and_are_those_applied() -> None:
    q, k, v = torch.randn(3, 1, 2, 7, 4)
    out, weights = inspectable_attention(q, k, v)
    torch.testing.assert_close(weights.sum(-1), torch.ones(1, 2, 7))
    torch.testing.assert_close(weights @ v, out)


def test_self_attention_is_the_identity_on_values() -> None:
    q, k, v = torch.randn(3, 1, 2, 5, 4)
    out, weights = inspectable_attention(q, k, v, attend="self")
    assert torch.equal(weights, torch.eye(5).expand(1, 2, 5, 5))
    assert torch.equal(out, v)


def test_self_attention_draws_the_dropout_of_attention_to_the_batch() -> None:
    qkv = torch.randn(1, 5, 24)
    states = []
    for attend in get_args(Attend):
        torch.manual_seed(0)
        attention(qkv, 2, dropout=0.5, attend=attend)
        states.append(torch.get_rng_state())
    assert torch.equal(*states)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_softmax_is_never_in_half_precision(dtype: torch.dtype) -> None:
    q, k, v = torch.randn(3, 1, 1, 300, 8).to(dtype)
    _, weights = inspectable_attention(q, k, v)
    assert weights.dtype == torch.float32
    torch.testing.assert_close(weights.sum(-1), torch.ones(1, 1, 300), atol=1e-6, rtol=0)


def test_large_half_precision_features_do_not_overflow() -> None:
    qkv = torch.full((1, 4, 3 * 64), 60.0, dtype=torch.float16)  # q·k = 230,400 > 65,504
    assert attention(qkv, 1).isfinite().all()


def chosen(n: int, width: int = 64, **changes: Any) -> Path:
    kind: dict[str, Any] = {"device": CPU, "dtype": torch.float32, "dropout": 0.5, **changes}
    return choose_path(1, 4, n, width, **kind)


def test_the_choice_on_the_cpu() -> None:
    assert chosen(4096) == "explicit"
    assert chosen(4097) == "blockwise"
    assert chosen(4097, dropout=0.0) == "fused"
    assert chosen(4097, dropout=0.0, attend="self") == "blockwise"


def test_the_choice_on_a_gpu() -> None:
    gpu: dict[str, Any] = {"device": CUDA, "dtype": torch.bfloat16, "kernels": True}
    assert [chosen(n, 128, **gpu) for n in (512, 1024, 4096)] == ["explicit", "fused", "fused"]
    assert [chosen(n, 128, **gpu) for n in (63, 64)] == ["fused", "explicit"]
    in_float32 = {**gpu, "dtype": torch.float32}
    assert [chosen(n, 128, **in_float32) for n in (63, 1024)] == ["explicit"] * 2
    assert chosen(1024, 512, **gpu) == "explicit"
    assert chosen(4096, 512, **gpu) == "triton"
    assert chosen(4096, 25, **gpu) == "triton", "torch's kernels would store all weights"
    assert chosen(4096, 512, **gpu, attend="self") == "explicit"
    assert chosen(16384, 512, **gpu, attend="self") == "blockwise"
    gpu["kernels"] = False
    assert chosen(4096, 512, **gpu) == "explicit"
    assert chosen(16384, 512, **gpu) == "blockwise"


@settings(max_examples=200, deadline=None)
@given(
    n=st.integers(1, 10**6),
    width=st.integers(1, 1024),
    device=st.sampled_from([CPU, CUDA, torch.device("mps")]),
    dropout=st.sampled_from([0.0, 0.5]),
    attend=st.sampled_from(get_args(Attend)),
    kernels=st.booleans(),
)
def test_no_choice_stores_weights_beyond_the_budget(
    n: int, width: int, device: torch.device, dropout: float, attend: Attend, kernels: bool
) -> None:
    kind = {"device": device, "dropout": dropout, "attend": attend, "kernels": kernels}
    path = chosen(n, width, **kind)
    if path == "explicit":
        assert 4 * 4 * n * n <= module_under_test.EXPLICIT_BUDGET
    if path == "fused":
        assert attend == "batch" and (device == CUDA or not dropout)


@pytest.mark.parametrize("path", ["explicit", "blockwise"])
def test_compiled_whole(path: Path) -> None:
    compiled = torch.compile(attention, fullgraph=True, backend="aot_eager")
    qkv = torch.randn(1, 16, 24)
    torch.testing.assert_close(compiled(qkv, 2, path=path), attention(qkv, 2, path=path))


@pytest.mark.parametrize("n", [1024, 4096])
def test_compiled_for_a_gpu_large_batches_keep_our_kernels(
    n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tensors without values stand for a GPU's; small sizes are left to the compiler."""
    pytest.importorskip("triton")
    monkeypatch.setattr("batchformer.kernels.available._missing", lambda _: None)

    def keeps_kernels(**options: Any) -> bool:
        torch._dynamo.reset()
        recorded = EagerAndRecordGraphs()
        compiled = torch.compile(attention, backend=recorded, fullgraph=True)
        with FakeTensorMode():
            qkv = torch.empty(n, 3 * 2048, device="cuda", dtype=torch.bfloat16)
            try:
                out = compiled(qkv, 4, dropout=0.5, **options)
            except RuntimeError as error:
                if "CUDA driver" in str(error):
                    pytest.skip("this torch needs a driver even for tensors without values")
                raise
        assert out.shape == (n, 2048) and out.is_cuda
        (graph,) = recorded.graphs
        return any("batchformer.sample_attention" in str(node.target) for node in graph.graph.nodes)

    assert keeps_kernels() is (n == 4096)
    assert not keeps_kernels(attend="self")
    with kernels.disabled():
        assert not keeps_kernels()
