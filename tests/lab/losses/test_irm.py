"""The closed form of IRM's penalty against the derivative that defines it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from batchformer.lab.losses.domains import irm_penalty


def draw(seed: int, groups: int, n: int, k: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(groups, n, k, generator=generator, dtype=torch.float64)
    return logits, torch.randint(k, (groups, n), generator=generator)


def by_definition(logits: Tensor, targets: Tensor) -> Tensor:
    """Products of derivatives by a scale of the logits, domain by domain, differentiable."""
    products = []
    for z, y in zip(logits, targets, strict=True):
        slopes = []
        for half in (slice(0, None, 2), slice(1, None, 2)):
            w = torch.ones((), dtype=z.dtype, requires_grad=True)
            loss = F.cross_entropy(w * z[half], y[half])
            slopes += torch.autograd.grad(loss, w, create_graph=True)
        products.append(slopes[0] * slopes[1])
    return torch.stack(products).mean()


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    groups=st.integers(1, 4),
    n=st.integers(2, 7),
    k=st.integers(2, 5),
)
def test_values_and_gradients_are_those_of_the_definition(
    seed: int, groups: int, n: int, k: int
) -> None:
    logits, targets = draw(seed, groups, n, k)
    logits.requires_grad_()
    own, defined = irm_penalty(logits, targets), by_definition(logits, targets)
    torch.testing.assert_close(own, defined)
    torch.testing.assert_close(*(torch.autograd.grad(p, logits)[0] for p in (own, defined)))


def test_first_and_second_derivatives() -> None:
    logits, targets = draw(1, 2, 5, 3)
    logits.requires_grad_()
    assert torch.autograd.gradcheck(lambda z: irm_penalty(z, targets), (logits,))
    assert torch.autograd.gradgradcheck(lambda z: irm_penalty(z, targets), (logits,))


def test_half_precision_is_taken_in_float32_and_extremes_stay_finite() -> None:
    logits, targets = draw(2, 2, 6, 4)
    half = logits.bfloat16()
    loss = irm_penalty(half, targets)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss.double(), irm_penalty(half.double(), targets))
    far = (1e4 * logits.float()).requires_grad_()
    irm_penalty(far, targets).backward()
    assert far.grad is not None and far.grad.isfinite().all()


def test_wrong_arguments_are_refused() -> None:
    logits, targets = draw(3, 2, 4, 3)
    for bad in ((logits[0], targets[0]), (logits, targets[:, :3]), (logits[:, :1], targets[:, :1])):
        with pytest.raises(ValueError, match="irm_penalty needs logits"):
            irm_penalty(*bad)
