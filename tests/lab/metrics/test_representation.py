"""Alignment, uniformity and spread, pair by pair; votes of neighbours."""

from __future__ import annotations

import itertools
import math
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from batchformer.lab.metrics import representation
from batchformer.lab.metrics.representation import (
    alignment,
    feature_std,
    log_shares,
    uniformity,
    votes,
)


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


@settings(max_examples=25)
@given(n=st.integers(2, 12), block=st.sampled_from([1, 5, 30, 10**6]))
def test_uniformity_by_hand(n: int, block: int) -> None:
    x = drawn(n)
    pairs = [math.exp(-2 * squared(a, b)) for a, b in itertools.combinations(units(x), 2)]
    wanted = math.log(sum(pairs) / len(pairs))
    with patch.object(representation, "PAIR_BLOCK", block):
        assert uniformity(x) == pytest.approx(wanted, abs=1e-9)


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


def test_too_few_samples_are_refused() -> None:
    with pytest.raises(ValueError, match=r"two views.*\(3, 6\) and \(2, 6\)"):
        alignment(drawn(3), drawn(2))
    with pytest.raises(ValueError, match="at least two samples, got 1"):
        uniformity(drawn(1))


# Votes of neighbours, against brute force and scikit-learn.


def made(n: int, m: int, classes: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    queries = torch.randn(n, 5, generator=draw, dtype=torch.float64)
    bank = torch.randn(m, 5, generator=draw, dtype=torch.float64)
    return queries, bank, torch.randint(classes, (m,), generator=draw)


def by_hand(
    queries: Tensor, bank: Tensor, labels: Tensor, classes: int, k: int, temperature: float
) -> Tensor:
    """As Wu et al. write it: exp(cos / T), neighbour by neighbour."""
    result = torch.zeros(len(queries), classes, dtype=torch.float64)
    for row, query in enumerate(queries.tolist()):
        near = []
        for other, label in zip(bank.tolist(), labels.tolist(), strict=True):
            dot = sum(a * b for a, b in zip(query, other, strict=True))
            near.append((dot / math.hypot(*query) / math.hypot(*other), label))
        for cosine, label in sorted(near, reverse=True)[:k]:
            result[row, label] += math.exp(cosine / temperature)
    return result


@settings(max_examples=40)
@given(
    n=st.integers(1, 6),
    m=st.integers(1, 12),
    classes=st.integers(1, 4),
    k=st.integers(1, 15),
    temperature=st.sampled_from([0.07, 0.5, 3.0]),
    block=st.sampled_from([1, 7, 10**6]),
)
def test_brute_force(n: int, m: int, classes: int, k: int, temperature: float, block: int) -> None:
    queries, bank, labels = made(n, m, classes)
    with patch.object(representation, "BLOCK", block):
        found = votes(queries, bank, labels, classes, k, temperature)
    wanted = by_hand(queries, bank, labels, classes, k, temperature)
    nearest = torch.nn.functional.cosine_similarity(queries[:, None], bank, dim=2).amax(1)
    torch.testing.assert_close(found * (nearest / temperature).exp()[:, None], wanted)


def test_scikit_learn() -> None:
    from sklearn.neighbors import KNeighborsClassifier

    queries, bank, labels = made(200, 300, 6)
    reference = KNeighborsClassifier(
        20, metric="cosine", algorithm="brute", weights=lambda apart: np.exp((1 - apart) / 0.07)
    ).fit(bank.numpy(), labels.numpy())
    found = votes(queries, bank, labels, 6, 20, 0.07)
    np.testing.assert_allclose(
        log_shares(found).softmax(1), reference.predict_proba(queries), atol=1e-12
    )
    assert found.argmax(1).tolist() == reference.predict(queries.numpy()).tolist()


def test_equally_near_ones_of_a_class_all_count() -> None:
    """A class-balanced bank holds images of rare classes many times."""
    bank = torch.tensor([[0.0, 1.0], [3.0, 3.0], [3.0, 3.0], [3.0, 3.0], [1.0, 0.0]])
    labels = torch.tensor([0, 1, 1, 1, 0])
    query = torch.tensor([[1.0, 1.0]])
    assert votes(query, bank, labels, 2, 3, 0.07).tolist() == [[0.0, 3.0]]
    assert votes(query, bank, labels, 2, 2, 0.07).tolist() == [[0.0, 2.0]]
    # Which of the two others is the fourth is open, and they have one class here.
    expected = math.exp((math.sqrt(0.5) - 1) / 0.5)
    found = votes(query, bank, labels, 2, 4, 0.5)
    torch.testing.assert_close(found, torch.tensor([[expected, 3.0]]))


def test_finite_at_low_temperatures_and_for_zeros() -> None:
    queries, bank, labels = made(9, 20, 4)
    found = votes(queries.float(), bank.float(), labels, 4, 5, 1e-4)
    assert found.isfinite().all() and (found.sum(1) >= 1).all()
    assert log_shares(found).isfinite().all()
    nothing = votes(torch.zeros(1, 5), bank.float(), labels, 4, 20, 0.1)
    assert torch.equal(nothing[0], labels.bincount(minlength=4).float())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"bank": torch.zeros(0, 5), "labels": torch.zeros(0).long()}, "0 features"),
        ({"labels": torch.zeros(3).long()}, "3 labels"),
        ({"k": 0}, "k >= 1"),
        ({"temperature": 0.0}, "temperature > 0"),
    ],
)
def test_wrong_banks_and_settings_are_refused(changes: dict[str, object], words: str) -> None:
    queries, bank, labels = made(2, 4, 2)
    options = {"bank": bank, "labels": labels, "classes": 2, "k": 1, "temperature": 0.1, **changes}
    with pytest.raises(ValueError, match=words):
        votes(queries, **options)  # type: ignore[arg-type]


def test_no_query() -> None:
    _, bank, labels = made(1, 4, 2)
    assert votes(torch.zeros(0, 5), bank.float(), labels, 2, 1, 0.1).shape == (0, 2)
