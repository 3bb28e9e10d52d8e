from __future__ import annotations

import math

import pytest
import torch

from batchformer.lab.models.heads import CosineClassifier


def test_logits_are_scaled_cosines() -> None:
    torch.manual_seed(0)
    head = CosineClassifier(4, 3, scale=12.5).double()
    with torch.no_grad():
        head.weight *= torch.tensor([[0.1], [1.0], [30.0]])
    x = 7 * torch.randn(5, 4, dtype=torch.float64)
    logits = head(x)
    for i, row in enumerate(x.tolist()):
        for c, vector in enumerate(head.weight.tolist()):
            dot = sum(a * b for a, b in zip(row, vector, strict=True))
            assert logits[i, c].item() == pytest.approx(
                12.5 * dot / (math.hypot(*row) * math.hypot(*vector)), rel=1e-9
            )


def test_lengths_do_not_matter() -> None:
    torch.manual_seed(0)
    head, x = CosineClassifier(6, 4), torch.randn(3, 6)
    before = head(x)
    with torch.no_grad():
        head.weight *= 5
    torch.testing.assert_close(head(0.01 * x), before)
    assert before.abs().max() <= 30 + 1e-4


def test_class_vectors_begin_as_directions_without_preference() -> None:
    torch.manual_seed(0)
    head = CosineClassifier(48, 2000)
    torch.testing.assert_close(head.weight.norm(dim=1), torch.ones(2000))
    assert head.weight.mean(0).norm().item() < 0.1
    assert head.weight.std().item() == pytest.approx(48**-0.5, rel=0.01)
    assert head.weight.requires_grad
    assert [name for name, _ in head.named_parameters()] == ["weight"]


def test_a_feature_of_zeros_has_zero_logits_and_finite_gradients() -> None:
    head = CosineClassifier(3, 2)
    x = torch.zeros(1, 3, requires_grad=True)
    logits = head(x)
    assert logits.tolist() == [[0, 0]]
    (gradient,) = torch.autograd.grad(logits.sum(), [x])
    assert gradient.isfinite().all()


def test_gradient() -> None:
    torch.manual_seed(0)
    head = CosineClassifier(3, 2, scale=2.0).double()
    x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(head, (x,))
    (gradient,) = torch.autograd.grad(head(x).square().sum(), [head.weight])
    # Turning a direction changes it; lengthening it does not.
    torch.testing.assert_close(
        (gradient * head.weight).sum(1), torch.zeros(2, dtype=torch.float64), atol=1e-12, rtol=0
    )
    assert gradient.norm() > 0


def test_it_says_what_it_is() -> None:
    expected = "CosineClassifier(in_features=3, out_features=2, scale=30)"
    assert repr(CosineClassifier(3, 2)) == expected
