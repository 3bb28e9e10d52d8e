from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from batchformer.lab.losses.ride import distillation, kl_from


def kl(p_logits: list[float], q_logits: list[float]) -> float:
    """KL(softmax(p) || softmax(q)) with explicit exponentials."""
    p, q = [math.exp(z) for z in p_logits], [math.exp(z) for z in q_logits]
    return sum(
        a / sum(p) * math.log((a / sum(p)) / (b / sum(q))) for a, b in zip(p, q, strict=True)
    )


def draw(seed: int, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 3 * torch.randn(shape, generator=generator, dtype=torch.float64)


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    n=st.integers(1, 4),
    k=st.integers(1, 5),
    temperature=st.floats(0.5, 5),
)
def test_equals_brute_force(seed: int, n: int, k: int, temperature: float) -> None:
    student, teacher = draw(seed, n, k), draw(seed + 1, n, k)
    per_sample = [
        kl([z / temperature for z in t], [z / temperature for z in s])
        for t, s in zip(teacher.tolist(), student.tolist(), strict=True)
    ]
    expected = temperature**2 * sum(per_sample) / n
    loss = distillation(student, teacher, temperature)
    assert loss.item() == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_a_first_axis_is_summed() -> None:
    reference, logits = draw(0, 4, 3), draw(1, 2, 4, 3)
    torch.testing.assert_close(
        kl_from(reference, logits), kl_from(reference, logits[0]) + kl_from(reference, logits[1])
    )


def test_gradient_reaches_the_student_alone() -> None:
    student, teacher = draw(2, 3, 4).requires_grad_(), draw(3, 3, 4).requires_grad_()
    assert torch.autograd.gradcheck(lambda z: distillation(z, teacher.detach(), 1.5), (student,))
    distillation(student, teacher, 1.5).backward()
    assert student.grad is not None
    assert teacher.grad is None


def test_extreme_and_half_precision_logits_stay_finite() -> None:
    student = torch.tensor([[3e4, -3e4]], dtype=torch.float16)
    loss = distillation(student, -student, 1.0)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(6e4, rel=1e-3)


def test_wrong_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\(4, 3\) and \(2, 3\); with two streams"):
        distillation(torch.zeros(4, 3), torch.zeros(2, 3), 1.5)
