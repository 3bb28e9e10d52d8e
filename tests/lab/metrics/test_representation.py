"""Alignment, uniformity and spread, pair by pair."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from batchformer.lab.metrics.representation import alignment, feature_std, uniformity


def drawn(n: int, channels: int = 6, seed: int = 0) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(n, channels, generator=draw, dtype=torch.float64) * 3 + 1


def units(x: Tensor) -> list[list[float]]:
    return [[v / math.hypot(*row) for v in row] for row in x.tolist()]


def squared(a: list[float], b: list[float]) -> float:
    return sum((x - y) ** 2 for x, y in zip(a, b, strict=True))


def test_alignment_by_hand() -> None:
    first, second = drawn(9), drawn(9, seed=1)
    apart = [squared(a, b) for a, b in zip(units(first), units(second), strict=True)]
    assert alignment(first, second) == pytest.approx(sum(apart) / 9)
    assert alignment(first, 7 * first) == pytest.approx(0, abs=1e-12)
    assert alignment(first, -first) == pytest.approx(4)


@settings(max_examples=25, deadline=None)
@given(
    n=st.integers(2, 12),
    scale=st.sampled_from([0.5, 2.0]),
    block=st.sampled_from([1, 5, 30, 10**6]),
)
def test_uniformity_by_hand(n: int, scale: float, block: int) -> None:
    x = drawn(n)
    pairs = [math.exp(-scale * squared(a, b)) for a, b in itertools.combinations(units(x), 2)]
    wanted = math.log(sum(pairs) / len(pairs))
    assert uniformity(x, scale, block) == pytest.approx(wanted, abs=1e-9)


def test_collapsed_and_even_features() -> None:
    same = torch.ones(8, 4) * torch.arange(1.0, 9.0)[:, None]
    assert uniformity(same) == pytest.approx(0, abs=1e-6)
    assert feature_std(same) == pytest.approx(0, abs=1e-6)
    even = torch.randn(2000, 64, generator=torch.Generator().manual_seed(0))
    assert uniformity(even) == pytest.approx(-4, abs=0.2)
    assert feature_std(even) == pytest.approx(1, abs=0.01)


def test_standard_deviation_by_hand() -> None:
    x = drawn(7, 3)
    columns = list(zip(*units(x), strict=True))
    means = [sum(c) / 7 for c in columns]
    spread = [
        math.sqrt(sum((v - m) ** 2 for v in c) / 7) for c, m in zip(columns, means, strict=True)
    ]
    assert feature_std(x) == pytest.approx(math.sqrt(3) * sum(spread) / 3)


def test_refused() -> None:
    with pytest.raises(ValueError, match=r"two views.*\(3, 6\) and \(2, 6\)"):
        alignment(drawn(3), drawn(2))
    with pytest.raises(ValueError, match="at least two samples, got 1"):
        uniformity(drawn(1))
