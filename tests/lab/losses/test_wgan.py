"""The critic's difference and its gradient penalty, where both are known in closed form."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from batchformer.lab.losses.wgan import critic_difference, gradient_penalty
from batchformer.lab.models.generator import Critic


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


def test_the_critic_of_the_laboratory_by_differences() -> None:
    torch.manual_seed(0)
    critic = Critic(3, 2, 16).double()
    for parameter in critic.parameters():
        nn.init.normal_(parameter)
    real, fake, condition, share = rows()
    weight = critic.hidden.weight

    def value() -> float:
        return gradient_penalty(critic, real, fake, condition, share).item()

    (gradient,) = torch.autograd.grad(
        gradient_penalty(critic, real, fake, condition, share), weight
    )
    for row, column in ((0, 0), (5, 2), (9, 4)):
        step = 1e-6
        weight.data[row, column] += step
        above = value()
        weight.data[row, column] -= 2 * step
        below = value()
        weight.data[row, column] += step
        assert gradient[row, column].item() == pytest.approx((above - below) / 2 / step, abs=1e-5)
    assert not gradient[:, 3:].any(), "slopes of a leaky rectifier do not move with the condition"


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


def test_the_difference_and_wrong_shapes() -> None:
    fake, real = torch.randn(5), torch.randn(7)
    expected = math.fsum(fake.tolist()) / 5 - math.fsum(real.tolist()) / 7
    assert critic_difference(fake, real).item() == pytest.approx(expected, abs=1e-6)
    with pytest.raises(ValueError, match=r"share \(N, 1\)"):
        real, fake, condition, _ = rows()
        gradient_penalty(Linear(), real, fake, condition, torch.rand(6))
