"""U, S and H against loops and torchmetrics."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchmetrics.functional.classification import multiclass_accuracy

from batchformer.lab.metrics.generalized import class_accuracy, generalized_accuracy, harmonic_mean


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=40),
)
def test_classes_by_a_loop(rows: list[tuple[int, int]]) -> None:
    answers, truth = (torch.tensor(column) for column in zip(*rows, strict=True))
    got = class_accuracy(answers, truth, 6)
    for c in range(6):
        own = [a == t for a, t in rows if t == c]
        if own:
            assert got[c].item() == pytest.approx(100 * sum(own) / len(own))
        else:
            assert math.isnan(got[c].item())


def test_means_by_torchmetrics() -> None:
    draw = torch.Generator().manual_seed(0)
    truth = torch.randint(0, 8, (300,), generator=draw)
    answers = torch.where(torch.rand(300, generator=draw) < 0.4, truth, truth.roll(1))
    unseen = torch.tensor([1, 6, 7])
    got = generalized_accuracy(class_accuracy(answers, truth, 8), unseen)
    apart = torch.isin(truth, unseen)
    for name, rows in (("unseen", apart), ("seen", ~apart)):
        per_class = multiclass_accuracy(answers[rows], truth[rows], 8, average=None)
        present = truth[rows].bincount(minlength=8) > 0
        assert got[name] == pytest.approx(100 * float(per_class[present].mean()), rel=1e-5)
    assert list(got) == ["hm", "unseen", "seen"]
    assert 1 / got["hm"] == pytest.approx((1 / got["unseen"] + 1 / got["seen"]) / 2)


def test_nothing_right_is_zero() -> None:
    got = generalized_accuracy(torch.zeros(4, dtype=torch.float64), torch.tensor([0]))
    assert got == {"hm": 0.0, "unseen": 0.0, "seen": 0.0}
    assert harmonic_mean(50.0, 0.0) == 0.0


def test_what_cannot_be_measured_is_said() -> None:
    with pytest.raises(ValueError, match="no sample of a class that is unseen"):
        generalized_accuracy(torch.tensor([50.0, math.nan]), torch.tensor([1]))
    with pytest.raises(ValueError, match="above the 2 classes"):
        class_accuracy(torch.tensor([0, 1]), torch.tensor([0, 2]), 2)
    with pytest.raises(ValueError, match=r"needs predictions and targets \(N,\)"):
        class_accuracy(torch.zeros(2, 3), torch.zeros(2), 3)
