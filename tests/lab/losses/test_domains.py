"""Penalties that compare domains, against their definitions."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from batchformer.lab.losses.domains import coral, irm_penalty, log_other, mdd, vrex

# CORAL, pair by pair, with numpy's covariance.


def draw_features(seed: int, groups: int, n: int, channels: int) -> Tensor:
    """Features (G, n, C) in float64, each domain with a place and a spread of its own."""
    generator = torch.Generator().manual_seed(seed)
    place = torch.randn(groups, 1, channels, generator=generator, dtype=torch.float64)
    spread = torch.rand(groups, 1, channels, generator=generator, dtype=torch.float64) + 0.1
    noise = torch.randn(groups, n, channels, generator=generator, dtype=torch.float64)
    return place + spread * noise


def coral_by_hand(features: Tensor) -> float:
    domains = [rows.numpy() for rows in features.detach().double()]
    terms = []
    for one, other in itertools.combinations(domains, 2):
        means = one.mean(0) - other.mean(0)
        covariances = np.atleast_2d(np.cov(one, rowvar=False) - np.cov(other, rowvar=False))
        terms.append((means**2).mean() + (covariances**2).mean())
    return float(np.mean(terms))


@settings(max_examples=40)
@given(
    seed=st.integers(0, 10_000),
    groups=st.integers(2, 4),
    n=st.integers(2, 6),
    channels=st.integers(1, 5),
)
def test_coral_equals_brute_force(seed: int, groups: int, n: int, channels: int) -> None:
    features = draw_features(seed, groups, n, channels)
    assert coral(features).item() == pytest.approx(coral_by_hand(features), rel=1e-10, abs=1e-12)


def test_gradient() -> None:
    assert torch.autograd.gradcheck(coral, (draw_features(1, 3, 4, 2).requires_grad_(),))


def test_half_precision_is_summed_in_float32_also_under_autocast() -> None:
    features = draw_features(3, 3, 6, 4).bfloat16()
    expected = coral_by_hand(features)
    with torch.autocast("cpu", torch.bfloat16):
        loss = coral(features)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("shape", [(2, 1, 3), (1, 4, 3), (4, 3)])
def test_too_few_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="one sample has no covariance"):
        coral(torch.zeros(shape))


# IRM's closed form against the derivative that defines it.


def draw_logits(seed: int, groups: int, n: int, k: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(groups, n, k, generator=generator, dtype=torch.float64)
    return logits, torch.randint(k, (groups, n), generator=generator)


def by_definition(logits: Tensor, targets: Tensor) -> Tensor:
    """Products of derivatives by a scale of the logits, domain by domain, differentiable."""
    products = []
    for z, y in zip(logits, targets, strict=True):
        slopes = []
        for half in (slice(0, None, 2), slice(1, None, 2)):
            w = torch.ones((), dtype=z.dtype, requires_grad=True)
            loss = F.cross_entropy(w * z[half], y[half])
            slopes += torch.autograd.grad(loss, w, create_graph=True)
        products.append(slopes[0] * slopes[1])
    return torch.stack(products).mean()


@settings(max_examples=40)
@given(
    seed=st.integers(0, 10_000),
    groups=st.integers(1, 4),
    n=st.integers(2, 7),
    k=st.integers(2, 5),
)
def test_values_and_gradients_are_those_of_the_definition(
    seed: int, groups: int, n: int, k: int
) -> None:
    logits, targets = draw_logits(seed, groups, n, k)
    logits.requires_grad_()
    own, defined = irm_penalty(logits, targets), by_definition(logits, targets)
    torch.testing.assert_close(own, defined)
    torch.testing.assert_close(*(torch.autograd.grad(p, logits)[0] for p in (own, defined)))


def test_first_and_second_derivatives() -> None:
    logits, targets = draw_logits(1, 2, 5, 3)
    logits.requires_grad_()
    assert torch.autograd.gradcheck(lambda z: irm_penalty(z, targets), (logits,))
    assert torch.autograd.gradgradcheck(lambda z: irm_penalty(z, targets), (logits,))


def test_half_precision_is_taken_in_float32_and_extremes_stay_finite() -> None:
    logits, targets = draw_logits(2, 2, 6, 4)
    half = logits.bfloat16()
    loss = irm_penalty(half, targets)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss.double(), irm_penalty(half.double(), targets))
    far = (1e4 * logits.float()).requires_grad_()
    irm_penalty(far, targets).backward()
    assert far.grad is not None and far.grad.isfinite().all()


def test_wrong_arguments_are_refused() -> None:
    logits, targets = draw_logits(3, 2, 4, 3)
    for bad in ((logits[0], targets[0]), (logits, targets[:, :3]), (logits[:, :1], targets[:, :1])):
        with pytest.raises(ValueError, match="irm_penalty needs logits"):
            irm_penalty(*bad)


# V-REx.


@given(losses=st.lists(st.floats(0, 100), min_size=1, max_size=6))
def test_brute_force_of_vrex(losses: list[float]) -> None:
    mean = sum(losses) / len(losses)
    expected = sum((loss - mean) ** 2 for loss in losses) / len(losses)
    assert vrex(torch.tensor(losses, dtype=torch.float64)).item() == pytest.approx(expected)


@pytest.mark.parametrize("shape", [(), (2, 3), (0,)])
def test_anything_but_a_row_of_losses_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="one of each domain"):
        vrex(torch.zeros(shape))


# MDD against explicit probabilities and against the clamped form of the released code.


def draw_pairs(seed: int, rows: tuple[int, int], k: int, scale: float = 2.0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    source, target = rows
    return [
        scale * torch.randn(n, k, generator=generator, dtype=torch.float64)
        for n in (source, source, target, target)
    ]


def mdd_by_hand(parts: list[Tensor], gamma: float) -> float:
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


@settings(max_examples=40)
@given(
    seed=st.integers(0, 10_000),
    rows=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    k=st.integers(2, 6),
    gamma=st.floats(0, 5),
)
def test_equals_the_clamped_form(seed: int, rows: tuple[int, int], k: int, gamma: float) -> None:
    parts = draw_pairs(seed, rows, k)
    smallest = (1 - parts[3].softmax(1)).min().item()
    expected = mdd_by_hand(parts, gamma)
    assert mdd(*parts, gamma).item() == pytest.approx(expected, rel=1e-9, abs=2e-6 / smallest)


def test_gradient_reaches_the_adversary_alone() -> None:
    parts = [part.requires_grad_() for part in draw_pairs(1, (3, 4), 5)]
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
    parts = [part.bfloat16() for part in draw_pairs(2, (4, 3), 5)]
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
