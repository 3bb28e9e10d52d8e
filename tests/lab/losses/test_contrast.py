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
    everything = queue_contrast(q.detach(), k, queue, temperature)
    wanted = queue_by_loop(q.detach(), k, queue, temperature, [True] * len(valid))
    assert everything.item() == pytest.approx(wanted, abs=1e-9)


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


def test_the_eight_terms_by_hand() -> None:
    """Both views, each stream with each: what the lists and the losses give together."""
    names = ("plain", "mixed")
    q = {(v, s): drawn(5, 4, seed=10 * v + i) for v in (1, 2) for i, s in enumerate(names)}
    k = {(v, s): drawn(5, 4, seed=30 + 10 * v + i) for v in (1, 2) for i, s in enumerate(names)}
    expected = 0.0
    for view, other in ((1, 2), (2, 1)):
        for x in names:
            for y in names:
                expected += batch_by_loop(q[view, x], k[other, y], 1.0)
    terms = [
        batch_contrast(q[view, query], k[3 - view, key], 1.0)
        for view in (1, 2)
        for query, key in stream_pairs("all", view)
    ]
    assert len(terms) == 8 and sum(terms).item() == pytest.approx(expected)  # type: ignore[union-attr]


LETTERS = {"plain": "a", "mixed": "b", "own_mixed": "o"}
LISTS: list[tuple[Any, str, str]] = [
    ("all", "aa ab ba bb", "aa ab ba bb"),
    ("plain", "aa", "aa"),
    ("first_release", "aa ab ba ba", "aa ab aa ab"),
    ("readme", "aa ab ba ba ao", "aa ab aa ab ao"),
]


@pytest.mark.parametrize(("kind", "first", "second"), LISTS)
def test_the_lists(kind: Any, first: str, second: str) -> None:
    for view, expected in ((1, first), (2, second)):
        pairs = stream_pairs(kind, view)
        assert " ".join(LETTERS[q] + LETTERS[k] for q, k in pairs) == expected


def test_what_lists_are_divided_by() -> None:
    wanted: dict[Any, tuple[int, int]] = {
        "all": (4, 1),
        "plain": (1, 1),
        "first_release": (4, 1),
        "readme": (5, 5),
    }
    for kind, (mean, total) in wanted.items():
        assert (pair_divisor(kind, "mean"), pair_divisor(kind, "sum")) == (mean, total)


def test_half_precision_is_widened() -> None:
    q, k, queue = (F.normalize(drawn(8, 16, seed=s), dim=1).bfloat16() for s in range(3))
    with torch.autocast("cpu", torch.bfloat16):
        got = queue_contrast(q, k, queue, 0.2), batch_contrast(q, k, 0.2)
    wide = q.float(), k.float(), queue.float()
    torch.testing.assert_close(got[0], queue_contrast(*wide, 0.2))
    torch.testing.assert_close(got[1], batch_contrast(*wide[:2], 0.2))
    assert got[0].dtype == got[1].dtype == torch.float32


def test_what_does_not_fit_is_said() -> None:
    row = torch.zeros(3, 2)
    with pytest.raises(ValueError, match=r"queries \(N, D\), keys \(N, D\) and a queue \(Q, D\)"):
        queue_contrast(row, row[:2], row, 0.2)
    with pytest.raises(ValueError, match=r"queue \(Q, D\), got"):
        queue_contrast(row, row, torch.zeros(3, 4), 0.2)
    with pytest.raises(ValueError, match=r"valid \(3,\)"):
        queue_contrast(row, row, row, 0.2, torch.ones(4).bool())
    with pytest.raises(ValueError, match="3 keys are too few for 3 queries whose keys begin at 1"):
        batch_contrast(row, row, 1.0, first=1)
    with pytest.raises(ValueError, match=r"queries \(N, D\) and keys \(M, D\)"):
        batch_contrast(row, torch.zeros(3, 4), 1.0)
    for temperature in (0.0, -1.0):
        with pytest.raises(ValueError, match="temperature must be above 0"):
            batch_contrast(row, row, temperature)
        with pytest.raises(ValueError, match="temperature must be above 0"):
            queue_contrast(row, row, row, temperature)
    wrong: Any = "every"
    with pytest.raises(ValueError, match="lists are all, plain, first_release, readme"):
        stream_pairs(wrong, 1)
    with pytest.raises(ValueError, match="views are 1 and 2"):
        stream_pairs("all", 3)
