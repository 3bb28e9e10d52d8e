"""Votes of neighbours against brute force and scikit-learn."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from batchformer.lab.metrics.representation import log_shares, votes


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


@settings(max_examples=40, deadline=None)
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
    found = votes(queries, bank, labels, classes, k, temperature, block)
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


def test_more_neighbours_than_there_are() -> None:
    queries, bank, labels = made(4, 7, 3)
    assert torch.equal(votes(queries, bank, labels, 3, 100, 0.1), votes(*made(4, 7, 3), 3, 7, 0.1))


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


def test_tied_classes_share_the_votes() -> None:
    bank = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    found = votes(torch.tensor([[5.0, 0.0]]), bank, torch.tensor([0, 1]), 3, 2, 0.07)
    assert found.tolist() == [[1.0, 1.0, 0.0]]


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
def test_refused(changes: dict[str, object], words: str) -> None:
    queries, bank, labels = made(2, 4, 2)
    options = {"bank": bank, "labels": labels, "classes": 2, "k": 1, "temperature": 0.1, **changes}
    with pytest.raises(ValueError, match=words):
        votes(queries, **options)  # type: ignore[arg-type]


def test_no_query() -> None:
    _, bank, labels = made(1, 4, 2)
    assert votes(torch.zeros(0, 5), bank.float(), labels, 2, 1, 0.1).shape == (0, 2)
