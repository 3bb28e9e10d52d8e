"""CORAL against the definition, pair by pair, with numpy's covariance."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from batchformer.lab.losses.domains import coral


def draw(seed: int, groups: int, n: int, channels: int) -> Tensor:
    """Features (G, n, C) in float64, each domain with a place and a spread of its own."""
    generator = torch.Generator().manual_seed(seed)
    place = torch.randn(groups, 1, channels, generator=generator, dtype=torch.float64)
    spread = torch.rand(groups, 1, channels, generator=generator, dtype=torch.float64) + 0.1
    noise = torch.randn(groups, n, channels, generator=generator, dtype=torch.float64)
    return place + spread * noise


def brute_force(features: Tensor) -> float:
    domains = [rows.numpy() for rows in features.detach().double()]
    terms = []
    for one, other in itertools.combinations(domains, 2):
        means = one.mean(0) - other.mean(0)
        covariances = np.atleast_2d(np.cov(one, rowvar=False) - np.cov(other, rowvar=False))
        terms.append((means**2).mean() + (covariances**2).mean())
    return float(np.mean(terms))


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    groups=st.integers(2, 4),
    n=st.integers(2, 6),
    channels=st.integers(1, 5),
)
def test_equals_brute_force(seed: int, groups: int, n: int, channels: int) -> None:
    features = draw(seed, groups, n, channels)
    assert coral(features).item() == pytest.approx(brute_force(features), rel=1e-10, abs=1e-12)


def test_gradient() -> None:
    assert torch.autograd.gradcheck(coral, (draw(1, 3, 4, 2).requires_grad_(),))


def test_half_precision_is_summed_in_float32_also_under_autocast() -> None:
    features = draw(3, 3, 6, 4).bfloat16()
    expected = brute_force(features)
    with torch.autocast("cpu", torch.bfloat16):
        loss = coral(features)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("shape", [(2, 1, 3), (1, 4, 3), (4, 3)])
def test_too_few_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="one sample has no covariance"):
        coral(torch.zeros(shape))
