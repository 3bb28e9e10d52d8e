"""RIDE's losses and the distillation against brute force."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from batchformer.lab.losses.long_tailed import effective_number_weights, ldam_margins
from batchformer.lab.losses.ride import (
    RIDE,
    class_temperatures,
    distillation,
    divergence,
    ride,
    ride_with_teacher,
)


def draw_experts(
    seed: int, e: int, n: int, k: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Logits (E, N, K), targets (N,), margins, weights and temperatures (K,), in float64."""
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(e, n, k, generator=generator, dtype=torch.float64)
    targets = torch.randint(k, (n,), generator=generator)
    margins, weights, temperatures = torch.rand(3, k, generator=generator, dtype=torch.float64)
    return logits, targets, 0.5 * margins, 0.1 + weights, 0.3 + temperatures


def softmax(row: list[float]) -> list[float]:
    mass = [math.exp(z) for z in row]
    return [m / sum(mass) for m in mass]


def kl(p: list[float], q: list[float]) -> float:
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))


def brute_divergence(logits: Tensor, temperatures: list[float]) -> float:
    """Sum over experts of Tm^2 times the mean divergence of the expert from the mean."""
    experts, n, k = logits.shape
    mean_temperature = sum(temperatures) / k
    total = 0.0
    for expert in range(experts):
        for i in range(n):
            mean = [sum(logits[e, i, c].item() for e in range(experts)) / experts for c in range(k)]
            own = logits[expert, i].tolist()
            p = softmax([z / t for z, t in zip(mean, temperatures, strict=True)])
            q = softmax([z / t for z, t in zip(own, temperatures, strict=True)])
            total += mean_temperature**2 * kl(p, q) / n
    return total


def brute_ldam(
    logits: Tensor, targets: Tensor, margins: Tensor, scale: float, weights: list[float]
) -> float:
    """Sum over experts of the weighted mean cross-entropy with margins."""
    total = 0.0
    for expert in logits.tolist():
        losses = weight_sum = 0.0
        for row, y in zip(expert, targets.tolist(), strict=True):
            shifted = [z - scale * margins[y].item() * (c == y) for c, z in enumerate(row)]
            losses -= weights[y] * math.log(softmax(shifted)[y])
            weight_sum += weights[y]
        total += losses / weight_sum
    return total


@settings(max_examples=25)
@given(
    seed=st.integers(0, 10_000),
    e=st.integers(1, 4),
    n=st.integers(1, 4),
    k=st.integers(1, 5),
    deferred=st.booleans(),
    diversity=st.sampled_from([-0.45, -0.2, 0.0, 0.3]),
)
def test_brute_force_of_ride(
    seed: int, e: int, n: int, k: int, deferred: bool, diversity: float
) -> None:
    logits, targets, margins, weights, temperatures = draw_experts(seed, e, n, k)
    w = weights.tolist() if deferred else [1.0] * k
    t = temperatures.tolist() if deferred else [1.0] * k
    expected = brute_ldam(logits, targets, margins, 4.0, w)
    expected += diversity * brute_divergence(logits, t)
    chosen, colder = (weights, temperatures) if deferred else (None, None)
    loss = ride(logits, targets, margins, 4.0, chosen, diversity=diversity, temperatures=colder)
    assert loss.item() == pytest.approx(expected, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(
    ("counts", "factor", "expected"),
    [
        # Shares 0.6, 0.3 and 0.1 of three classes: w = 3 p f + 1 - f with f = 0.5.
        ([60, 30, 10], 0.5, [1, 0.95 / 1.4, 0.65 / 1.4]),
        ([60, 30, 10], 0.0, [1, 1, 1]),
        ([5, 5], 0.9, [1, 1]),
        ([4, 0], 0.5, [1, 0.5 / 1.5]),
    ],
)
def test_temperatures_by_hand(counts: list[int], factor: float, expected: list[float]) -> None:
    assert class_temperatures(counts, factor).tolist() == pytest.approx(expected)


def test_equal_experts_do_not_diverge_and_one_expert_cannot() -> None:
    logits, _, _, _, temperatures = draw_experts(0, 1, 4, 5)
    for same in (logits, logits.expand(3, -1, -1)):
        assert divergence(same, temperatures).abs().item() < 1e-12


def test_gradient_treats_the_mean_as_constant() -> None:
    logits, _, _, _, temperatures = draw_experts(1, 3, 2, 4)
    logits.requires_grad_()
    (found,) = torch.autograd.grad(divergence(logits, temperatures), [logits])
    mean = logits.detach().mean(0)
    scale = temperatures.mean() ** 2 / 2
    expected = scale * ((logits / temperatures).softmax(-1) - (mean / temperatures).softmax(-1))
    torch.testing.assert_close(found, (expected / temperatures).detach())


def test_half_precision_logits_are_summed_in_float32() -> None:
    logits, targets, margins, weights, temperatures = draw_experts(6, 3, 4, 5)
    half = (5 * logits).to(torch.bfloat16)
    loss = ride(half, targets, margins, 4.0, weights, temperatures=temperatures)
    assert loss.dtype == torch.float32
    exact = ride(half.double(), targets, margins, 4.0, weights, temperatures=temperatures)
    torch.testing.assert_close(loss.double(), exact, rtol=1e-5, atol=1e-5)


def test_module_defers_weights_and_temperatures() -> None:
    counts = [400, 30, 2]
    logits, targets, _, _, _ = draw_experts(7, 3, 8, 3)
    module = RIDE(counts, diversity=-0.45, temperature_factor=0.05, scale=10.0, beta=0.99)
    margins, weights = ldam_margins(counts), effective_number_weights(counts, 0.99)
    before = ride(logits, targets, margins, 10.0, diversity=-0.45)
    colder = class_temperatures(counts, 0.05)
    after = ride(logits, targets, margins, 10.0, weights, diversity=-0.45, temperatures=colder)
    assert not torch.isclose(before, after, rtol=1e-2)
    torch.testing.assert_close(module(logits, targets), before)
    module.reweighted = True
    torch.testing.assert_close(module(logits, targets), after)
    assert module.state_dict() == {}


LOGITS, TARGETS, MARGINS = torch.zeros(3, 6, 4), torch.zeros(6).long(), torch.zeros(4)
REFUSED: list[tuple[Any, tuple[Any, ...], str]] = [
    (ride, (LOGITS[0], TARGETS, MARGINS), r"ride needs expert_logits \(E, N, K\).*\(6, 4\)"),
    (ride, (LOGITS, TARGETS[:5], MARGINS), r"targets \(N,\), got \(3, 6, 4\) and \(5,\)"),
    (ride_with_teacher, (LOGITS.sum(), LOGITS, LOGITS), "distillation needs"),
    (distillation, (torch.zeros(4, 3), torch.zeros(2, 3), 1.5), r"\(4, 3\) and \(2, 3\)"),
]


@pytest.mark.parametrize(("function", "arguments", "words"), REFUSED)
def test_wrong_arguments_are_refused(function: Any, arguments: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        function(*arguments)


# Distillation.


def draw(seed: int, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 3 * torch.randn(shape, generator=generator, dtype=torch.float64)


@settings(max_examples=30)
@given(
    seed=st.integers(0, 10_000),
    n=st.integers(1, 4),
    k=st.integers(1, 5),
    temperature=st.floats(0.5, 5),
)
def test_brute_force_of_distillation(seed: int, n: int, k: int, temperature: float) -> None:
    student, teacher = draw(seed, n, k), draw(seed + 1, n, k)
    per_sample = [
        kl(softmax([z / temperature for z in t]), softmax([z / temperature for z in s]))
        for t, s in zip(teacher.tolist(), student.tolist(), strict=True)
    ]
    expected = temperature**2 * sum(per_sample) / n
    loss = distillation(student, teacher, temperature)
    assert loss.item() == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_gradient_reaches_the_student_alone() -> None:
    student, teacher = draw(2, 3, 4).requires_grad_(), draw(3, 3, 4).requires_grad_()
    assert torch.autograd.gradcheck(lambda z: distillation(z, teacher.detach(), 1.5), (student,))
    distillation(student, teacher, 1.5).backward()
    assert student.grad is not None and teacher.grad is None


def test_extreme_and_half_precision_logits_stay_finite() -> None:
    student = torch.tensor([[3e4, -3e4]], dtype=torch.float16)
    loss = distillation(student, -student, 1.0)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(6e4, rel=1e-3)
