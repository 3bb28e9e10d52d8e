"""Attention against a float64 loop over samples, and path against path."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from batchformer import attention as module_under_test
from batchformer.attention import attention, inspectable_attention


def brute_force(q: Tensor, k: Tensor, v: Tensor, self_only: bool = False) -> Tensor:
    """One row at a time, in float64, without a softmax function."""
    q, k, v = (t.double() for t in (q, k, v))
    out = torch.zeros_like(q)
    for index in torch.cartesian_prod(*(torch.arange(s) for s in q.shape[:3])).tolist():
        length, head, i = index
        keys = [i] if self_only else range(k.shape[2])
        scores = [float(q[length, head, i] @ k[length, head, j]) for j in keys]
        exps = [math.exp(s / math.sqrt(q.shape[-1]) - max(scores)) for s in scores]
        for j, e in zip(keys, exps, strict=True):
            out[length, head, i] += e / sum(exps) * v[length, head, j]
    return out


@settings(max_examples=25, deadline=None)
@given(
    length=st.integers(1, 2),
    heads=st.integers(1, 3),
    n=st.integers(1, 6),
    width=st.integers(1, 5),
    self_only=st.booleans(),
)
def test_equals_brute_force(length: int, heads: int, n: int, width: int, self_only: bool) -> None:
    q, k, v = torch.randn(3, length, heads, n, width)
    out = attention(q, k, v, attend="self" if self_only else "batch")
    torch.testing.assert_close(out.double(), brute_force(q, k, v, self_only), atol=1e-5, rtol=1e-5)


def test_the_fused_path_gives_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = torch.randn(3, 2, 4, 33, 8).requires_grad_().unbind()
    explicit = attention(q, k, v)
    monkeypatch.setattr(module_under_test, "EXPLICIT_BUDGET", 0)
    fused = attention(q, k, v)
    assert fused.grad_fn is not None and explicit.grad_fn is not None
    assert type(fused.grad_fn) is not type(explicit.grad_fn), "both calls took the same path"
    torch.testing.assert_close(fused, explicit, atol=1e-5, rtol=1e-5)
    weight = torch.randn_like(fused)
    for a, b in zip(
        torch.autograd.grad((fused * weight).sum(), (q, k, v)),
        torch.autograd.grad((explicit * weight).sum(), (q, k, v)),
        strict=True,
    ):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


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
    q, k, v = torch.randn(3, 1, 2, 5, 4)
    states = []
    for attend in ("batch", "self"):
        torch.manual_seed(0)
        attention(q, k, v, dropout=0.5, attend=attend)  # type: ignore[arg-type]
        states.append(torch.get_rng_state())
    assert torch.equal(*states)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_softmax_is_never_in_half_precision(dtype: torch.dtype) -> None:
    q, k, v = torch.randn(3, 1, 1, 300, 8).to(dtype)
    _, weights = inspectable_attention(q, k, v)
    assert weights.dtype == torch.float32
    torch.testing.assert_close(weights.sum(-1), torch.ones(1, 1, 300), atol=1e-6, rtol=0)


def test_large_half_precision_features_do_not_overflow() -> None:
    q = torch.full((1, 1, 4, 64), 60.0, dtype=torch.float16)  # q·k = 230,400 > 65,504
    assert attention(q, q, q).isfinite().all()
