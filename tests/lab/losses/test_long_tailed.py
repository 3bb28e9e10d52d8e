"""Losses for long tails: empty classes, extremes, refusals; test_erm.py has their values."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from batchformer.lab.losses.long_tailed import (
    BalancedSoftmax,
    balanced_softmax,
    checked_counts,
    effective_number_weights,
    ldam,
    ldam_margins,
)

# Class counts.


@pytest.mark.parametrize("dtype", [torch.int64, torch.float64])
def test_counts_come_back_in_float64_and_apart_from_what_was_given(dtype: torch.dtype) -> None:
    given = torch.tensor([7, 3], dtype=dtype)
    counts = checked_counts(given, "loss")
    assert counts.dtype == torch.float64
    assert counts.tolist() == [7.0, 3.0]
    counts += 1
    assert given.tolist() == [7, 3]


@pytest.mark.parametrize(
    "counts", [[], [[1, 2]], [3, -1], [1.0, math.nan], [1.0, math.inf], [0, 0]]
)
def test_bad_counts_are_refused(counts: list[float]) -> None:
    with pytest.raises(ValueError, match="loss"):
        checked_counts(torch.tensor(counts), "loss")


# Effective numbers.


def exact(counts: list[int], beta: Fraction) -> list[float]:
    """The weights in rational numbers: one over 1 + beta + ... + beta^(n-1), of mean one."""
    raw = [(1 - beta) / (1 - beta**n) for n in counts]
    return [float(w / sum(raw) * len(counts)) for w in raw]


@settings(max_examples=30)
@given(
    counts=st.lists(st.integers(1, 300), min_size=1, max_size=6),
    beta=st.sampled_from(["0", "0.5", "0.99", "0.9999", "0.99999999"]),
)
def test_equals_rational_arithmetic(counts: list[int], beta: str) -> None:
    weights = effective_number_weights(counts, float(beta))
    expected = torch.tensor(exact(counts, Fraction(beta)))
    torch.testing.assert_close(weights, expected, rtol=2e-6, atol=0)


def test_beta_spans_from_equal_weights_to_inverse_frequencies() -> None:
    counts = torch.tensor([4000, 70, 1])
    assert effective_number_weights(counts, 0.0).tolist() == [1, 1, 1]
    inverse = 1 / counts.double()
    torch.testing.assert_close(
        effective_number_weights(counts, 1 - 1e-12).double(),
        3 * inverse / inverse.sum(),
        rtol=1e-5,
        atol=0,
    )


def test_very_large_classes_all_weigh_the_same() -> None:
    weights = effective_number_weights([10**9, 10**7, 10**6])
    torch.testing.assert_close(weights, torch.ones(3))


@pytest.mark.parametrize("beta", [0.0, 0.9999])
def test_an_empty_class_has_no_weight(beta: float) -> None:
    weights = effective_number_weights([9, 0, 2], beta)
    assert weights[1] == 0
    torch.testing.assert_close(weights[[0, 2]], effective_number_weights([9, 2], beta))


# Balanced Softmax.


def draw_logits(seed: int, n: int, k: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Logits (N, K), hard targets (N,), soft targets (N, K) and counts (K,), in float64."""
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(n, k, generator=generator, dtype=torch.float64)
    hard = torch.randint(k, (n,), generator=generator)
    soft = torch.rand(n, k, generator=generator, dtype=torch.float64)
    counts = torch.randint(1, 1300, (k,), generator=generator)
    return logits, hard, soft / soft.sum(dim=1, keepdim=True), counts


def test_balanced_softmax_sums_half_precision_in_float32() -> None:
    _, hard, soft, _ = draw_logits(4, 6, 4)
    counts = torch.tensor([70_000, 900, 30, 2])  # 70,000 is infinite in float16
    logits = torch.randn(6, 4, generator=torch.Generator().manual_seed(4))
    for dtype in (torch.float16, torch.bfloat16):
        module = BalancedSoftmax(counts).to(dtype)
        for targets in (hard, soft.to(dtype)):
            loss = module(logits.to(dtype), targets)
            assert loss.dtype == torch.float32
            exact = targets if targets.ndim == 1 else targets.double()
            expected = balanced_softmax(logits.to(dtype).double(), exact, counts)
            torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["hard", "soft"])
def test_an_empty_class_is_as_if_absent(kind: str) -> None:
    logits, hard, soft, counts = draw_logits(5, 6, 3)
    wide = torch.cat([logits, torch.full((6, 1), 9.0, dtype=torch.float64)], dim=1)
    wide.requires_grad_()
    loss = BalancedSoftmax([*counts.tolist(), 0])
    targets = hard if kind == "hard" else soft
    wide_targets = hard if kind == "hard" else F.pad(soft, (0, 1))
    value = loss(wide, wide_targets)
    value.backward()
    torch.testing.assert_close(value, balanced_softmax(logits, targets, counts))
    assert wide.grad is not None
    assert wide.grad.isfinite().all()
    assert (wide.grad[:, 3] == 0).all()
    assert (wide.grad[:, :3] != 0).all()


def test_a_target_in_an_empty_class_has_infinite_loss() -> None:
    for targets in (torch.tensor([1, 0]), torch.tensor([[0.9, 0.1], [1.0, 0.0]])):
        loss = balanced_softmax(torch.zeros(2, 2), targets, torch.tensor([4, 0]), reduction="none")
        assert loss.tolist() == [math.inf, 0.0]


def test_module_equals_function_and_keeps_counts_out_of_the_state() -> None:
    logits, hard, _, counts = draw_logits(6, 6, 4)
    module = BalancedSoftmax(counts)
    torch.testing.assert_close(module(logits, hard), balanced_softmax(logits, hard, counts))
    assert module.state_dict() == {}
    assert [name for name, _ in module.named_buffers()] == ["class_counts"]
    before = counts.clone()
    counts += 1
    assert torch.equal(module.class_counts, before)


@pytest.mark.parametrize(
    ("targets", "counts"),
    [((6,), (1,)), ((6,), (5,)), ((6, 1), (4,)), ((5,), (4,)), ((4,), (4,))],
)
def test_wrong_shapes_are_refused(targets: tuple[int, ...], counts: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="balanced_softmax needs"):
        balanced_softmax(torch.zeros(6, 4), torch.zeros(targets).long(), torch.ones(counts))


# LDAM.


def draw_cosines(seed: int, n: int, k: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Cosines (N, K), targets (N,), margins (K,) and class weights (K,), in float64."""
    generator = torch.Generator().manual_seed(seed)
    cosines = 2 * torch.rand(n, k, generator=generator, dtype=torch.float64) - 1
    targets = torch.randint(k, (n,), generator=generator)
    margins = 0.5 * torch.rand(k, generator=generator, dtype=torch.float64)
    weights = 0.1 + torch.rand(k, generator=generator, dtype=torch.float64)
    return cosines, targets, margins, weights


def test_an_empty_class_has_no_margin_and_is_not_the_rarest() -> None:
    margins = ldam_margins([81, 0, 1])
    torch.testing.assert_close(margins, torch.tensor([0.5 / 3, 0.0, 0.5]))


def test_ldam_sums_half_precision_in_float32() -> None:
    cosines, targets, margins, weights = draw_cosines(3, 6, 4)
    for dtype in (torch.float16, torch.bfloat16):
        logits = (30 * cosines).to(dtype)
        loss = ldam(logits, targets, margins.to(dtype), class_weights=weights.to(dtype))
        assert loss.dtype == torch.float32
        expected = ldam(
            logits.double(), targets, margins.to(dtype), class_weights=weights.to(dtype)
        )
        torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=1e-5)


def test_extreme_logits_stay_finite() -> None:
    logits = torch.tensor([[1e4, -1e4], [-1e4, 1e4]], requires_grad=True)
    loss = ldam(logits, torch.tensor([0, 0]), torch.tensor([0.5, 0.5]))
    loss.backward()
    assert loss.item() == pytest.approx(1e4, rel=1e-2)
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


def test_wrong_arguments_are_refused() -> None:
    logits, y, margins = torch.zeros(6, 4), torch.zeros(6).long(), torch.zeros(4)
    for bad in ((logits[0], y, margins), (logits, y[:5], margins), (logits, y, margins[:3])):
        with pytest.raises(ValueError, match="ldam needs logits"):
            ldam(*bad)
