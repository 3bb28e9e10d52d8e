"""Contrastive losses against loops, and the lists of contrasted streams."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from batchformer.lab.losses.contrast import (
    batch_contrast,
    pair_divisor,
    queue_contrast,
    stream_pairs,
)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def dot(a: list[float], b: list[float]) -> float:
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


def one_term(scores: list[float], target: int) -> float:
    return math.log(math.fsum(math.exp(s) for s in scores)) - scores[target]


def queue_by_loop(q: Tensor, k: Tensor, queue: Tensor, t: float, valid: list[bool]) -> float:
    total = 0.0
    for query, key in zip(q.tolist(), k.tolist(), strict=True):
        held = [other for other, v in zip(queue.tolist(), valid, strict=True) if v]
        total += one_term([dot(query, other) / t for other in [key, *held]], 0)
    return total / len(q)


def batch_by_loop(q: Tensor, k: Tensor, t: float, first: int = 0) -> float:
    total = 0.0
    for i, query in enumerate(q.tolist()):
        scores = []
        for key in k.tolist():
            lengths = math.sqrt(dot(query, query)) * math.sqrt(dot(key, key))
            scores.append(dot(query, key) / lengths / t)
        total += one_term(scores, first + i)
    return 2 * t * total / len(q)


@settings(max_examples=30)
@given(
    n=st.integers(1, 5),
    valid=st.lists(st.booleans(), min_size=1, max_size=6),
    temperature=st.floats(0.07, 2),
)
def test_the_queue_by_a_loop(n: int, valid: list[bool], temperature: float) -> None:
    q, k, queue = (F.normalize(drawn(m, 4, seed=m), dim=1) for m in (n, n + 10, len(valid) + 30))
    k, queue = k[:n], queue[: len(valid)]
    q = q.requires_grad_()
    got = queue_contrast(q, k, queue, temperature, torch.tensor(valid))
    expected = queue_by_loop(q.detach(), k, queue, temperature, valid)
    assert got.item() == pytest.approx(expected, abs=1e-9)
    got.backward()  # type: ignore[no-untyped-call]
    assert q.grad is not None and q.grad.isfinite().all()


def test_an_empty_queue_asks_for_nothing() -> None:
    q = F.normalize(drawn(4, 3), dim=1).requires_grad_()
    loss = queue_contrast(q, q.detach().flip(0), drawn(6, 3), 0.2, torch.zeros(6) > 0)
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.item() == 0 and q.grad is not None and not q.grad.any()


@settings(max_examples=30)
@given(n=st.integers(1, 5), before=st.integers(0, 4), after=st.integers(0, 4), t=st.floats(0.1, 2))
def test_the_batch_by_a_loop(n: int, before: int, after: int, t: float) -> None:
    q, k = drawn(n, 4, seed=n), drawn(before + n + after, 4, seed=50)
    got = batch_contrast(q, k, t, before)
    assert got.item() == pytest.approx(batch_by_loop(q, k, t, before), abs=1e-9)


def test_gradients_of_info_nce_by_differences() -> None:
    q, k = drawn(4, 3).requires_grad_(), drawn(6, 3, seed=1)
    assert torch.autograd.gradcheck(lambda rows: batch_contrast(rows, k, 0.5, 1), (q,))
    queue, valid = drawn(5, 3, seed=2), torch.tensor([True, False, True, True, False])
    assert torch.autograd.gradcheck(
        lambda rows: queue_contrast(rows, k[:4], queue, 0.5, valid), (q,)
    )


LETTERS = {"plain": "a", "mixed": "b", "own_mixed": "o"}
LISTS: list[tuple[Any, str, str, int, int]] = [
    ("all", "aa ab ba bb", "aa ab ba bb", 4, 1),
    ("plain", "aa", "aa", 1, 1),
    ("first_release", "aa ab ba ba", "aa ab aa ab", 4, 1),
    ("readme", "aa ab ba ba ao", "aa ab aa ab ao", 5, 5),
]


@pytest.mark.parametrize(("kind", "first", "second", "mean", "total"), LISTS)
def test_the_lists_and_what_they_are_divided_by(
    kind: Any, first: str, second: str, mean: int, total: int
) -> None:
    for view, expected in ((1, first), (2, second)):
        pairs = stream_pairs(kind, view)
        assert " ".join(LETTERS[q] + LETTERS[k] for q, k in pairs) == expected
    assert (pair_divisor(kind, "mean"), pair_divisor(kind, "sum")) == (mean, total)


FULL = torch.ones(8, dtype=torch.bool)


def test_half_precision_is_widened() -> None:
    q, k, queue = (F.normalize(drawn(8, 16, seed=s), dim=1).bfloat16() for s in range(3))
    with torch.autocast("cpu", torch.bfloat16):
        got = queue_contrast(q, k, queue, 0.2, FULL), batch_contrast(q, k, 0.2)
    wide = q.float(), k.float(), queue.float()
    torch.testing.assert_close(got[0], queue_contrast(*wide, 0.2, FULL))
    torch.testing.assert_close(got[1], batch_contrast(*wide[:2], 0.2))
    assert got[0].dtype == got[1].dtype == torch.float32


ROW = torch.zeros(3, 2)
QUEUE = r"queries \(N, D\), keys \(N, D\), queue \(Q, D\) and valid \(Q,\), got"
REFUSED: list[tuple[Any, tuple[Any, ...], str]] = [
    (queue_contrast, (ROW, ROW[:2], ROW, 0.2, FULL[:3]), QUEUE),
    (queue_contrast, (ROW, ROW, torch.zeros(3, 4), 0.2, FULL[:3]), QUEUE),
    (queue_contrast, (ROW, ROW, ROW, 0.2, FULL), QUEUE),
    (batch_contrast, (ROW, ROW, 1.0, 1), "3 keys are too few for 3 queries whose keys begin at 1"),
    (batch_contrast, (ROW, torch.zeros(3, 4), 1.0), r"queries \(N, D\) and keys \(M, D\)"),
]


@pytest.mark.parametrize(("function", "arguments", "words"), REFUSED)
def test_what_does_not_fit_is_said(function: Any, arguments: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        function(*arguments)
