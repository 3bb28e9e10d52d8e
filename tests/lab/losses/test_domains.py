"""Penalties that compare domains, against their definitions."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from batchformer.lab.losses.domains import coral, irm_penalty, log_other, mdd

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


def test_extremes_stay_finite() -> None:
    logits, targets = draw_logits(2, 2, 6, 4)
    far = (1e4 * logits.float()).requires_grad_()
    irm_penalty(far, targets).backward()
    assert far.grad is not None and far.grad.isfinite().all()


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
    assert [part.grad is None for part in parts] == [True, False, True, False]


def test_where_the_adversary_is_certain_the_gradient_stays() -> None:
    logits = torch.tensor([[80.0, 0.0, 0.0]], requires_grad=True)
    value = log_other(logits, torch.tensor([0]))
    value.backward()
    assert value.item() == pytest.approx(math.log(2) - 80, rel=1e-6)
    torch.testing.assert_close(logits.grad, torch.tensor([[-1.0, 0.5, 0.5]]))
    clamped = torch.tensor([[80.0, 0.0, 0.0]], requires_grad=True)
    (1 - clamped.softmax(1)[:, 0] + 1e-6).clamp(max=1).log().sum().backward()
    assert clamped.grad is not None and clamped.grad.abs().max() < 1e-6


# All of them.


def of_coral() -> tuple[Any, list[Tensor]]:
    return coral, [draw_features(3, 3, 6, 4)]


def of_irm() -> tuple[Any, list[Tensor]]:
    logits, targets = draw_logits(1, 2, 5, 3)
    return lambda z: irm_penalty(z, targets), [logits]


def of_mdd() -> tuple[Any, list[Tensor]]:
    source, first, target, second = draw_pairs(2, (4, 3), 5)
    return lambda a, b: mdd(source, a, target, b, 4.0), [first, second]


@pytest.mark.parametrize("penalty", [of_coral, of_irm, of_mdd])
def test_gradients_by_differences_and_half_precision_in_float32(penalty: Any) -> None:
    loss, inputs = penalty()
    assert torch.autograd.gradcheck(loss, tuple(x.requires_grad_() for x in inputs))
    half = [x.detach().bfloat16() for x in inputs]
    with torch.autocast("cpu", torch.bfloat16):
        found = loss(*half)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), loss(*(x.double() for x in half)))


A, B = torch.zeros(2, 3), torch.zeros(4, 3)
LOGITS, TARGETS = torch.zeros(2, 4, 3), torch.zeros(2, 4).long()
REFUSED: list[tuple[Any, tuple[Any, ...], str]] = [
    *((coral, (torch.zeros(s),), "has no covariance") for s in ((2, 1, 3), (1, 4, 3), (4, 3))),
    (irm_penalty, (LOGITS[0], TARGETS[0]), "irm_penalty needs logits"),
    (irm_penalty, (LOGITS, TARGETS[:, :3]), "irm_penalty needs logits"),
    (irm_penalty, (LOGITS[:, :1], TARGETS[:, :1]), "irm_penalty needs logits"),
    (mdd, (A, B, B, B, 4.0), "mdd needs source"),
    (mdd, (A, A, B, A, 4.0), "mdd needs source"),
    (mdd, (A[0], A[0], B, B, 4.0), "mdd needs source"),
    (mdd, (A, A, B[:, :2], B[:, :2], 4.0), "mdd needs source"),
    (mdd, (A[:, :1], A[:, :1], B[:, :1], B[:, :1], 4.0), "at least two classes"),
]


@pytest.mark.parametrize(("penalty", "arguments", "words"), REFUSED)
def test_wrong_arguments_are_refused(penalty: Any, arguments: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        penalty(*arguments)
