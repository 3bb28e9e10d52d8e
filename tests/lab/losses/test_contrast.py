"""Contrast of samples and of classes against loops."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from batchformer.lab.losses.contrast import class_contrast, supervised_contrast


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


@settings(max_examples=40, deadline=None)
@given(labels=st.lists(st.integers(0, 3), min_size=1, max_size=9), temperature=st.floats(0.05, 2))
def test_samples_by_a_loop(labels: list[int], temperature: float) -> None:
    draw = torch.Generator().manual_seed(len(labels))
    z = F.normalize(torch.randn(len(labels), 4, generator=draw).double(), dim=1).requires_grad_()
    got = supervised_contrast(z, torch.tensor(labels), temperature)
    assert got.item() == pytest.approx(by_loop(z.detach(), labels, temperature), abs=1e-9)
    got.backward()  # type: ignore[no-untyped-call]
    assert z.grad is not None and z.grad.isfinite().all()


def test_gradients_by_differences() -> None:
    z = F.normalize(torch.randn(6, 3).double(), dim=1).requires_grad_()
    labels = torch.tensor([0, 0, 1, 1, 1, 2])
    assert torch.autograd.gradcheck(lambda rows: supervised_contrast(rows, labels, 0.5), (z,))


def test_a_sample_that_is_alone_is_an_other_and_no_anchor() -> None:
    z = F.normalize(torch.randn(5, 3), dim=1)
    labels = torch.tensor([0, 0, 1, 1, 2])
    alone = supervised_contrast(z, labels, 0.1)
    assert alone > supervised_contrast(z[:4], labels[:4], 0.1)
    assert supervised_contrast(z[2:], torch.tensor([0, 1, 2]), 0.1) == 0


def test_half_precision_is_widened() -> None:
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


def test_what_does_not_fit_is_said() -> None:
    with pytest.raises(ValueError, match=r"directions \(N, Z\) and labels \(N,\)"):
        supervised_contrast(torch.zeros(3, 2), torch.zeros(4), 0.1)
    with pytest.raises(ValueError, match="temperature must be above 0"):
        supervised_contrast(torch.zeros(3, 2), torch.zeros(3), 0.0)
    with pytest.raises(ValueError, match="temperature must be above 0"):
        class_contrast(torch.zeros(3, 2), torch.zeros(3, dtype=torch.int64), -1.0)
