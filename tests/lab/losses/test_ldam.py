from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from batchformer.lab.losses.long_tailed import LDAM, effective_number_weights, ldam, ldam_margins


def draw(seed: int, n: int, k: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Cosines (N, K), targets (N,), margins (K,) and class weights (K,), in float64."""
    generator = torch.Generator().manual_seed(seed)
    cosines = 2 * torch.rand(n, k, generator=generator, dtype=torch.float64) - 1
    targets = torch.randint(k, (n,), generator=generator)
    margins = 0.5 * torch.rand(k, generator=generator, dtype=torch.float64)
    weights = 0.1 + torch.rand(k, generator=generator, dtype=torch.float64)
    return cosines, targets, margins, weights


def brute_force(
    cosines: Tensor, targets: Tensor, margins: Tensor, scale: float, weights: Tensor | None
) -> float:
    """Weighted losses over weights, with explicit exponentials, one number at a time."""
    total = weight_sum = 0.0
    for row, y in zip(cosines.tolist(), targets.tolist(), strict=True):
        margin = margins[y].item()
        mass = [math.exp(scale * (c - margin * (i == y))) for i, c in enumerate(row)]
        weight = 1.0 if weights is None else weights[y].item()
        total -= weight * math.log(mass[y] / sum(mass))
        weight_sum += weight
    return total / weight_sum


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    n=st.integers(1, 5),
    k=st.integers(1, 6),
    scale=st.floats(0.5, 40),
    weighted=st.booleans(),
)
def test_equals_brute_force(seed: int, n: int, k: int, scale: float, weighted: bool) -> None:
    cosines, targets, margins, weights = draw(seed, n, k)
    chosen = weights if weighted else None
    expected = brute_force(cosines, targets, margins, scale, chosen)
    scaled = ldam(scale * cosines, targets, margins, scale, chosen)
    plain = ldam(cosines, targets, margins, scale, chosen, logits_are="cosines")
    assert scaled.item() == pytest.approx(expected, rel=1e-9, abs=1e-9)
    assert plain.item() == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_gradient() -> None:
    cosines, targets, margins, weights = draw(1, 4, 5)
    cosines.requires_grad_()
    for how in ("scaled", "cosines"):
        assert torch.autograd.gradcheck(
            lambda z, how=how: ldam(z, targets, margins, 3.0, weights, logits_are=how), (cosines,)
        )


@settings(max_examples=30, deadline=None)
@given(
    counts=st.lists(st.integers(1, 10**9), min_size=1, max_size=8),
    largest=st.floats(0.01, 1.0),
)
def test_margins_equal_brute_force(counts: list[int], largest: float) -> None:
    expected = [largest * (min(counts) / n) ** 0.25 for n in counts]
    torch.testing.assert_close(ldam_margins(counts, largest), torch.tensor(expected))


def test_an_allowed_empty_class_has_no_margin_and_is_not_the_rarest() -> None:
    margins = ldam_margins([81, 0, 1], allow_empty=True)
    torch.testing.assert_close(margins, torch.tensor([0.5 / 3, 0.0, 0.5]))
    with pytest.raises(ValueError, match=r"ldam_margins: 1 of 3"):
        ldam_margins([81, 0, 1])


def test_half_precision_logits_are_summed_in_float32() -> None:
    cosines, targets, margins, weights = draw(3, 6, 4)
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


def test_module_weighs_classes_only_once_it_is_told() -> None:
    counts = [400, 30, 2]
    cosines, targets, _, _ = draw(4, 8, 3)
    module = LDAM(counts, scale=10.0, beta=0.99, logits_are="cosines")
    margins, weights = ldam_margins(counts), effective_number_weights(counts, 0.99)
    before = ldam(cosines, targets, margins, 10.0, logits_are="cosines")
    after = ldam(cosines, targets, margins, 10.0, weights, logits_are="cosines")
    assert not torch.isclose(before, after, rtol=1e-2)
    torch.testing.assert_close(module(cosines, targets), before)
    module.reweighted = True
    torch.testing.assert_close(module(cosines, targets), after)
    assert module.state_dict() == {}
    assert repr(module) == "LDAM(classes=3, scale=10)"


def test_wrong_arguments_are_refused() -> None:
    logits, y, margins = torch.zeros(6, 4), torch.zeros(6).long(), torch.zeros(4)
    for bad in ((logits[0], y, margins), (logits, y[:5], margins), (logits, y, margins[:3])):
        with pytest.raises(ValueError, match="ldam needs logits"):
            ldam(*bad)
    with pytest.raises(ValueError, match="logits_are"):
        ldam(logits, y, margins, logits_are="raw")  # type: ignore[arg-type]
