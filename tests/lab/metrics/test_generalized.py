"""U, S and H, and the curve of seen against unseen classes."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import trapezoid
from torch import Tensor
from torchmetrics.functional.classification import multiclass_accuracy, multiclass_confusion_matrix

from batchformer.lab.metrics.generalized import (
    POINTS,
    NaNScoreError,
    generalized_accuracy,
    seen_unseen_curve,
)
from batchformer.lab.metrics.shots import per_class_accuracy


def class_accuracy(answers: Tensor, truth: Tensor, classes: int) -> Tensor:
    return per_class_accuracy(multiclass_confusion_matrix(answers, truth, classes))


def test_means_by_torchmetrics() -> None:
    draw = torch.Generator().manual_seed(0)
    truth = torch.randint(0, 8, (300,), generator=draw)
    answers = torch.where(torch.rand(300, generator=draw) < 0.4, truth, truth.roll(1))
    unseen = torch.tensor([1, 6, 7])
    by_class = class_accuracy(answers, truth, 9)
    assert math.isnan(by_class[8])
    got = generalized_accuracy(by_class, unseen)
    apart = torch.isin(truth, unseen)
    for name, rows in (("unseen", apart), ("seen", ~apart)):
        per_class = multiclass_accuracy(answers[rows], truth[rows], 8, average=None)
        present = truth[rows].bincount(minlength=8) > 0
        wanted = 100 * per_class[present].double()
        torch.testing.assert_close(by_class[:8][present], wanted, rtol=1e-5, atol=0)
        assert got[name] == pytest.approx(100 * float(per_class[present].mean()), rel=1e-5)
    assert list(got) == ["hm", "unseen", "seen"]
    assert 1 / got["hm"] == pytest.approx((1 / got["unseen"] + 1 / got["seen"]) / 2)


def test_what_cannot_be_measured_is_said() -> None:
    with pytest.raises(ValueError, match="no sample of a class that is unseen"):
        generalized_accuracy(torch.tensor([50.0, math.nan]), torch.tensor([1]))


# The curve, against a sweep by loops.


def by_loops(scores: Tensor, targets: Tensor, unseen: list[int]) -> list[tuple[float, float]]:
    """(seen, unseen) at a bias below all changes, between any two, and above all."""
    seen = [c for c in range(scores.shape[1]) if c not in unseen]
    rows = scores.tolist()
    changes = sorted({max(row[c] for c in seen) - max(row[c] for c in unseen) for row in rows})
    between = [(a + b) / 2 for a, b in itertools.pairwise(changes)]
    points = []
    for bias in (changes[0] - 1, *between, changes[-1] + 1):
        said = []
        for row in rows:
            raised = [score + bias * (c in unseen) for c, score in enumerate(row)]
            said.append(raised.index(max(raised)))
        found = class_accuracy(torch.tensor(said), targets, scores.shape[1])
        both = generalized_accuracy(found, torch.tensor(unseen))
        points.append((both["seen"], both["unseen"]))
    return points


@settings(max_examples=40)
@given(data=st.data(), classes=st.integers(2, 6), samples=st.integers(2, 30))
def test_every_point_is_that_of_a_sweep(data: st.DataObject, classes: int, samples: int) -> None:
    """Scores are few whole numbers, so that many samples change together."""
    of_unseen = st.sets(st.integers(0, classes - 1), min_size=1, max_size=classes - 1)
    unseen = sorted(data.draw(of_unseen))
    seen = [c for c in range(classes) if c not in unseen]
    drawn = data.draw(
        st.lists(st.integers(0, classes - 1), min_size=samples - 2, max_size=samples - 2)
    )
    targets = torch.tensor([seen[0], unseen[0], *drawn])
    # Within a row no two scores are equal: which of equal classes is said is not the curve's.
    rows = st.permutations([float(3 * i) for i in range(classes)])
    scores = torch.tensor([data.draw(rows) for _ in range(samples)])
    wanted = by_loops(scores, targets, unseen)
    curve = seen_unseen_curve(scores, targets, torch.tensor(unseen))
    assert len(curve.seen) == len(wanted)
    got = zip(curve.seen.tolist(), curve.unseen.tolist(), strict=True)
    assert [x for point in got for x in point] == pytest.approx(
        [x for point in wanted for x in point], abs=1e-9
    )
    heights, places = np.array(wanted).T
    assert curve.auc == pytest.approx(trapezoid(heights, places) / 100, abs=1e-9)


def test_a_bias_on_unseen_classes_changes_nothing() -> None:
    """This is what the area is for: H depends on the balance, the area does not."""
    draw = torch.Generator().manual_seed(0)
    targets = torch.randint(0, 8, (400,), generator=draw)
    scores = torch.randn(400, 8, generator=draw, dtype=torch.float64)
    scores += 2 * torch.nn.functional.one_hot(targets, 8)
    unseen = torch.tensor([5, 6, 7])
    shifted = scores.clone()
    shifted[:, unseen] -= 3.0
    both = [seen_unseen_curve(each, targets, unseen) for each in (scores, shifted)]
    assert both[0].auc == pytest.approx(both[1].auc)
    means = [
        generalized_accuracy(class_accuracy(each.argmax(1), targets, 8), unseen)["hm"]
        for each in (scores, shifted)
    ]
    assert means[0] > means[1] + 20


def test_a_long_curve_is_thinned_and_its_area_is_not() -> None:
    draw = torch.Generator().manual_seed(1)
    targets = torch.arange(3000) % 10
    scores = torch.randn(3000, 10, generator=draw)
    unseen = torch.tensor([8, 9])
    curve = seen_unseen_curve(scores, targets, unseen)
    assert len(curve.seen) == len(curve.unseen) == POINTS
    assert bool((curve.seen.diff() <= 0).all()) and bool((curve.unseen.diff() >= 0).all())
    assert curve.unseen[0] == 0 and float(curve.seen[-1]) == pytest.approx(0, abs=1e-9)
    # One of 8 and one of 2 by chance, and the hyperbola-like curve between lies above the chord.
    thinned = float(torch.trapezoid(curve.seen, curve.unseen)) / 100
    assert thinned == pytest.approx(curve.auc, rel=0.02)
    assert math.isclose(float(curve.seen[0]), 100 / 8, rel_tol=0.3)


def test_a_curve_that_cannot_be_drawn_is_refused() -> None:
    scores = torch.eye(3)
    with pytest.raises(ValueError, match="no sample of a class that is unseen"):
        seen_unseen_curve(scores[:2], torch.tensor([0, 1]), torch.tensor([2]))
    with pytest.raises(ValueError, match="no sample of a class that is seen"):
        seen_unseen_curve(scores[:1], torch.tensor([2]), torch.tensor([2]))
    with pytest.raises(NaNScoreError, match="diverged"):
        seen_unseen_curve(scores * math.nan, torch.tensor([0, 1, 2]), torch.tensor([2]))
    with pytest.raises(ValueError, match=r"got \(3, 3\) and \(2,\)"):
        seen_unseen_curve(scores, torch.tensor([0, 1]), torch.tensor([2]))
