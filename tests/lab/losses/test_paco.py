from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from batchformer.lab.losses.paco import CentreLoss, paco


@dataclass
class Inputs:
    """N queries and keys (N, D), a queue (Q, D), centre logits (N, K), in float64."""

    queries: Tensor
    keys: Tensor
    queue: Tensor
    centres: Tensor
    targets: Tensor
    queue_targets: Tensor
    counts: Tensor

    def loss(
        self, alpha: float = 0.3, temperature: float = 0.2, valid: Tensor | None = None
    ) -> Tensor:
        arguments: list[Tensor] = [getattr(self, field.name) for field in fields(self)]
        valid = torch.ones(len(self.queue), dtype=torch.bool) if valid is None else valid
        return paco(*arguments, alpha=alpha, temperature=temperature, queue_valid=valid)

    def of_dtype(self, dtype: torch.dtype) -> Inputs:
        names = ("queries", "keys", "queue", "centres")
        return replace(self, **{name: getattr(self, name).to(dtype) for name in names})


def draw(seed: int, n: int = 5, q: int = 7, k: int = 3, d: int = 4) -> Inputs:
    generator = torch.Generator().manual_seed(seed)

    def directions(rows: int) -> Tensor:
        return F.normalize(torch.randn(rows, d, generator=generator, dtype=torch.float64), dim=1)

    return Inputs(
        directions(n),
        directions(n),
        directions(q),
        2 * torch.randn(n, k, generator=generator, dtype=torch.float64),
        torch.randint(k, (n,), generator=generator),
        torch.randint(k, (q,), generator=generator),
        torch.randint(1, 900, (k,), generator=generator),
    )


def brute_force(
    x: Inputs, *, alpha: float, temperature: float, valid: list[bool] | None = None
) -> float:
    """Anchor by anchor and score by score, with explicit exponentials."""
    n, k = x.centres.shape
    vectors = [*x.queries.tolist(), *x.keys.tolist(), *x.queue.tolist()]
    labels = [*x.targets.tolist(), *x.targets.tolist(), *x.queue_targets.tolist()]
    held = [True] * (2 * n) + (valid or [True] * len(x.queue))
    images = sum(x.counts.tolist())
    total = 0.0
    for i in range(n):
        y = int(x.targets[i])
        exponentials, positives = [], []
        for c in range(k):
            prior = math.log(x.counts[c].item() / images + 1e-9)
            score = math.exp(x.centres[i, c].item() + prior)
            exponentials.append(score)
            if c == y:
                positives.append((1.0, score))
        for j, (vector, label) in enumerate(zip(vectors, labels, strict=True)):
            if j == i or not held[j]:
                continue
            dot = sum(a * b for a, b in zip(vectors[i], vector, strict=True))
            score = math.exp(dot / temperature)
            exponentials.append(score)
            if label == y:
                positives.append((alpha, score))
        log_p = sum(w * math.log(score / sum(exponentials)) for w, score in positives)
        total -= log_p / sum(w for w, _ in positives)
    return total / n


@settings(max_examples=30)
@given(
    seed=st.integers(0, 10_000),
    n=st.integers(1, 5),
    q=st.integers(0, 6),
    k=st.integers(1, 4),
    alpha=st.sampled_from([0.0, 0.01, 0.05, 1.0]),
    temperature=st.sampled_from([0.05, 0.2, 1.0]),
)
def test_equals_brute_force(
    seed: int, n: int, q: int, k: int, alpha: float, temperature: float
) -> None:
    x = draw(seed, n, q, k)
    expected = brute_force(x, alpha=alpha, temperature=temperature)
    assert x.loss(alpha, temperature).item() == pytest.approx(expected, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("valid", [[True] * 7, [False] * 7, [True, False] * 3 + [True]])
def test_slots_without_a_key_are_as_if_absent(valid: list[bool]) -> None:
    x = draw(1)
    x.queue[~torch.tensor(valid)] = 1e6  # whatever lies there
    mask = torch.tensor(valid)
    kept = replace(x, queue=x.queue[mask], queue_targets=x.queue_targets[mask])
    torch.testing.assert_close(x.loss(valid=mask), kept.loss())
    if any(valid):
        sane = replace(x, queue=x.queue.clamp(max=1.0))
        expected = brute_force(sane, alpha=0.3, temperature=0.2, valid=valid)
        assert sane.loss(valid=mask).item() == pytest.approx(expected, rel=1e-9)


def test_gradient() -> None:
    x = draw(3, n=3, q=2)

    def loss(queries: Tensor, keys: Tensor, centres: Tensor) -> Tensor:
        moved = replace(x, queries=queries, keys=keys, centres=centres)
        return moved.loss(valid=torch.tensor([True, False]))

    inputs = tuple(t.requires_grad_() for t in (x.queries, x.keys, x.centres))
    assert torch.autograd.gradcheck(loss, inputs)


def test_extreme_scores_stay_finite_in_float32() -> None:
    """exp(1 / 0.005) and exp(1000) are infinite in float32; counts differ by 10^9."""
    drawn = draw(8)
    drawn = replace(drawn, keys=drawn.queries, centres=500 * drawn.centres)
    x = replace(drawn.of_dtype(torch.float32), counts=torch.tensor([10**9, 1, 0]))
    x.queries.requires_grad_()
    x.centres.requires_grad_()
    loss = x.loss(alpha=0.05, temperature=0.005)
    loss.backward()
    assert loss.isfinite()
    exact = x.of_dtype(torch.float64).loss(0.05, 0.005)
    torch.testing.assert_close(loss.double(), exact, rtol=1e-5, atol=1e-5)
    for leaf in (x.queries, x.centres):
        assert leaf.grad is not None
        assert leaf.grad.isfinite().all()


def test_scores_are_taken_in_float32_under_autocast() -> None:
    x = draw(9, n=16, q=32, d=32)
    single = x.of_dtype(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        loss = single.loss(temperature=0.05)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, single.loss(temperature=0.05))
    half = x.of_dtype(torch.bfloat16)
    exact = half.of_dtype(torch.float64).loss()
    torch.testing.assert_close(half.loss().double(), exact, rtol=1e-5, atol=1e-5)


def test_without_samples_it_is_the_loss_of_the_centres() -> None:
    x = draw(10)
    loss = CentreLoss(x.counts)
    priors = (x.counts / x.counts.sum()).log()
    torch.testing.assert_close(
        loss(x.centres, x.targets), F.cross_entropy(x.centres + priors, x.targets)
    )
    assert loss.state_dict() == {}, "counts describe the data"
    half, many = x.centres.half(), CentreLoss([70_000, 900, 2])  # 70,000 is infinite in float16
    torch.testing.assert_close(many(half, x.targets), many(half.float(), x.targets))


def test_wrong_shapes_are_refused() -> None:
    x = draw(11)
    for name in ("keys", "queue", "centres", "targets", "queue_targets", "counts"):
        tensor = getattr(x, name)
        short = tensor[:, :-1] if tensor.ndim == 2 else tensor[:-1]
        with pytest.raises(ValueError, match=r"paco, with N .* needs .*targets \(N,\)"):
            replace(x, **{name: short}).loss()
    for wrong in ({"valid": torch.ones(3, dtype=torch.bool)}, {}):
        with pytest.raises(ValueError, match="paco"):
            (x if wrong else replace(x, queries=x.queries[0])).loss(**wrong)


def test_it_compiles_whole() -> None:
    x = draw(12)
    compiled = torch.compile(paco, backend="eager", fullgraph=True)
    arguments = [getattr(x, field.name) for field in fields(x)]
    full = torch.ones(len(x.queue), dtype=torch.bool)
    found = compiled(*arguments, alpha=0.3, temperature=0.2, queue_valid=full)
    torch.testing.assert_close(found, x.loss(0.3, 0.2))
