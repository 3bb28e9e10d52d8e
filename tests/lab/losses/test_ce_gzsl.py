"""The losses of CE-GZSL: contrasts against loops, and the critic's penalty in closed form."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from batchformer.lab.losses.ce_gzsl import class_contrast, gradient_penalty, supervised_contrast

# Samples and classes.


def by_loop(z: Tensor, labels: list[int], temperature: float) -> float:
    losses = []
    for i in range(len(z)):
        others = [j for j in range(len(z)) if j != i]
        own = [j for j in others if labels[j] == labels[i]]
        if own:
            scores = {j: float(z[i] @ z[j]) / temperature for j in others}
            total = math.log(math.fsum(math.exp(s) for s in scores.values()))
            losses.append(math.fsum(total - scores[p] for p in own) / len(own))
    return math.fsum(losses) / len(losses) if losses else 0.0


@settings(max_examples=40)
@given(labels=st.lists(st.integers(0, 3), min_size=1, max_size=9), temperature=st.floats(0.05, 2))
def test_samples_by_a_loop(labels: list[int], temperature: float) -> None:
    draw = torch.Generator().manual_seed(len(labels))
    z = F.normalize(torch.randn(len(labels), 4, generator=draw).double(), dim=1).requires_grad_()
    got = supervised_contrast(z, torch.tensor(labels), temperature)
    assert got.item() == pytest.approx(by_loop(z.detach(), labels, temperature), abs=1e-9)
    got.backward()  # type: ignore[no-untyped-call]
    assert z.grad is not None and z.grad.isfinite().all()


def test_half_precision_of_samples_is_widened() -> None:
    z = F.normalize(torch.randn(8, 16), dim=1).bfloat16()
    labels = torch.arange(8) % 2
    with torch.autocast("cpu", torch.bfloat16):
        got = supervised_contrast(z, labels, 0.1)
    torch.testing.assert_close(got, supervised_contrast(z.float(), labels, 0.1))
    scores = torch.randn(4, 5).bfloat16()
    assert class_contrast(scores, torch.arange(4), 0.1).dtype == torch.float32


def test_classes_by_a_loop() -> None:
    scores, targets = torch.randn(6, 4).double(), [0, 3, 1, 1, 2, 0]
    expected = 0.0
    for row, target in zip(scores.tolist(), targets, strict=True):
        total = math.log(math.fsum(math.exp(s / 0.1) for s in row))
        expected += (total - row[target] / 0.1) / 6
    assert class_contrast(scores, torch.tensor(targets), 0.1).item() == pytest.approx(expected)


def test_samples_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"directions \(N, Z\) and labels \(N,\)"):
        supervised_contrast(torch.zeros(3, 2), torch.zeros(4), 0.1)


# The critic's penalty.


class Linear(nn.Module):
    """``x . w + a . v``, whose gradient by x is w everywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([1.0, -2.0, 2.0], dtype=torch.float64))
        self.v = nn.Parameter(torch.tensor([9.0, 9.0], dtype=torch.float64))

    def forward(self, x: Tensor, a: Tensor) -> Tensor:
        return x @ self.w + a @ self.v


def rows(n: int = 6) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    real, fake = (torch.randn(n, 3, generator=draw).double() for _ in range(2))
    return real, fake, torch.randn(n, 2, generator=draw).double(), torch.rand(n, 1).double()


def test_a_linear_critic() -> None:
    critic = Linear()
    real, fake, condition, share = rows()
    penalty = gradient_penalty(critic, real, fake, condition, share)
    assert penalty.item() == pytest.approx((3.0 - 1) ** 2)
    by_w, by_v = torch.autograd.grad(penalty, [critic.w, critic.v], allow_unused=True)
    # d(|w| - 1)^2 / dw = 2 (|w| - 1) w / |w|; the condition plays no part.
    torch.testing.assert_close(by_w, 2 * 2 * critic.w.detach() / 3)
    assert by_v is None or not by_v.any()


def test_a_quadratic_critic_knows_where_it_is_asked() -> None:
    real, fake, condition, share = rows()
    scale = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)

    def critic(x: Tensor, a: Tensor) -> Tensor:
        return scale * x.square().sum(1) * a[:, 0]

    penalty = gradient_penalty(critic, real, fake, condition, share)
    between = share * real + (1 - share) * fake
    lengths = 2 * between.square().sum(1).sqrt() * condition[:, 0].abs()
    torch.testing.assert_close(penalty, (scale * lengths - 1).square().mean())
    (slope,) = torch.autograd.grad(penalty, scale)
    torch.testing.assert_close(slope, (2 * (scale.detach() * lengths - 1) * lengths).mean())


def test_no_gradient_reaches_the_features() -> None:
    real, fake, condition, share = rows()
    fake.requires_grad_()
    gradient_penalty(Linear(), real, fake, condition, share).backward()  # type: ignore[no-untyped-call]
    assert fake.grad is None


def test_a_flat_critic_has_a_finite_gradient() -> None:
    critic = Linear()
    nn.init.zeros_(critic.w)
    real, fake, condition, share = rows()
    penalty = gradient_penalty(critic, real, fake, condition, share)
    assert penalty.item() == 1
    penalty.backward()  # type: ignore[no-untyped-call]
    assert critic.w.grad is not None and critic.w.grad.isfinite().all()


def test_wrong_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"share \(N, 1\)"):
        real, fake, condition, _ = rows()
        gradient_penalty(Linear(), real, fake, condition, torch.rand(6, 2))
