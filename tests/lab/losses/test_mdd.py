"""The discrepancy against explicit probabilities and against the clamped form of the code."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from batchformer.lab.losses.domains import log_other, mdd


def draw(seed: int, rows: tuple[int, int], k: int, scale: float = 2.0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    source, target = rows
    return [
        scale * torch.randn(n, k, generator=generator, dtype=torch.float64)
        for n in (source, source, target, target)
    ]


def brute_force(parts: list[Tensor], gamma: float) -> float:
    """Explicit exponentials, one row at a time, with the offset and the clamp."""

    def chosen(classifier: Tensor, adversary: Tensor) -> list[float]:
        probabilities = []
        for z, a in zip(classifier.tolist(), adversary.tolist(), strict=True):
            mass = [math.exp(v) for v in a]
            probabilities.append(mass[z.index(max(z))] / sum(mass))
        return probabilities

    on_source, on_target = chosen(*parts[:2]), chosen(*parts[2:])
    agreement = -sum(map(math.log, on_source)) / len(on_source)
    disagreement = sum(math.log(min(1 - p + 1e-6, 1)) for p in on_target) / len(on_target)
    return -gamma * agreement + disagreement


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    rows=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    k=st.integers(2, 6),
    gamma=st.floats(0, 5),
)
def test_equals_the_clamped_form(seed: int, rows: tuple[int, int], k: int, gamma: float) -> None:
    parts = draw(seed, rows, k)
    smallest = (1 - parts[3].softmax(1)).min().item()
    expected = brute_force(parts, gamma)
    assert mdd(*parts, gamma).item() == pytest.approx(expected, rel=1e-9, abs=2e-6 / smallest)


def test_gradient_reaches_the_adversary_alone() -> None:
    parts = [part.requires_grad_() for part in draw(1, (3, 4), 5)]
    mdd(*parts, 4.0).backward()
    assert parts[0].grad is None and parts[2].grad is None
    source, target = parts[0].detach(), parts[2].detach()
    assert torch.autograd.gradcheck(
        lambda a, b: mdd(source, a, target, b, 4.0), (parts[1], parts[3])
    )


def test_where_the_adversary_is_certain_the_gradient_stays() -> None:
    logits = torch.tensor([[80.0, 0.0, 0.0]], requires_grad=True)
    value = log_other(logits, torch.tensor([0]))
    value.backward()
    assert value.item() == pytest.approx(math.log(2) - 80, rel=1e-6)
    torch.testing.assert_close(logits.grad, torch.tensor([[-1.0, 0.5, 0.5]]))
    clamped = torch.tensor([[80.0, 0.0, 0.0]], requires_grad=True)
    (1 - clamped.softmax(1)[:, 0] + 1e-6).clamp(max=1).log().sum().backward()
    assert clamped.grad is not None and clamped.grad.abs().max() < 1e-6


def test_half_precision_is_taken_in_float32() -> None:
    parts = [part.bfloat16() for part in draw(2, (4, 3), 5)]
    value = mdd(*parts, 4.0)
    assert value.dtype == torch.float32
    torch.testing.assert_close(value.double(), mdd(*(p.double() for p in parts), 4.0))


def test_wrong_shapes_are_refused() -> None:
    a, b = torch.zeros(2, 3), torch.zeros(4, 3)
    for bad in ((a, b, b, b), (a, a, b, a), (a[0], a[0], b, b)):
        with pytest.raises(ValueError, match=r"\(N, K\) twice"):
            mdd(*bad, 4.0)
    for bad in ((a, a, b[:, :2], b[:, :2]), (a[:, :1], a[:, :1], b[:, :1], b[:, :1])):
        with pytest.raises(ValueError, match="two or more classes"):
            mdd(*bad, 4.0)
