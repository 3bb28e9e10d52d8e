"""What the features are told is minus the coefficient times the truth."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from batchformer.lab.models.domains import reverse_gradient


def loss(features: Tensor) -> Tensor:
    return (features.sin() * features.flip(0)).sum() + features.pow(3).mean()


@pytest.mark.parametrize("coefficient", [0.0, 0.1, 2.5, torch.tensor(0.3, dtype=torch.float64)])
def test_against_finite_differences(coefficient: Tensor | float) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    direction = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    loss(reverse_gradient(x, coefficient)).backward()
    assert x.grad is not None
    told = (x.grad * direction).sum().item()
    with torch.no_grad():
        h = 1e-5
        true = ((loss(x + h * direction) - loss(x - h * direction)) / (2 * h)).item()
    assert told == pytest.approx(-float(coefficient) * true, rel=1e-7, abs=1e-12)


def test_values_pass_bit_for_bit_and_layers_behind_learn_as_ever() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(3, 4, requires_grad=True), torch.randn(4, 2, requires_grad=True)
    out = reverse_gradient(x, torch.tensor(0.5))
    assert torch.equal(out, x)
    (out @ weight).square().sum().backward()
    reversed_x, behind = x.grad, weight.grad
    x.grad = weight.grad = None
    (x @ weight).square().sum().backward()
    assert behind is not None and torch.equal(behind, weight.grad)
    torch.testing.assert_close(reversed_x, -0.5 * x.grad)


def test_the_coefficient_keeps_the_type_of_half_precision() -> None:
    x = torch.randn(3, 4, dtype=torch.bfloat16, requires_grad=True)
    reverse_gradient(x, torch.tensor(0.25)).sum().backward()
    assert x.grad is not None and x.grad.dtype == torch.bfloat16
    assert torch.equal(x.grad, torch.full((3, 4), -0.25, dtype=torch.bfloat16))
