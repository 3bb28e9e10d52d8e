"""Accuracy by training images per class, and calibration."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, confusion_matrix, recall_score
from torch import Tensor

from batchformer.insight.classes import shot_groups, third_groups
from batchformer.lab.metrics.shots import (
    LongTailedMetrics,
    per_class_accuracy,
    shot_accuracy,
    top1_calibration_error,
)

counts_lists = st.lists(st.integers(0, 1300), min_size=1, max_size=30)


def test_limits_of_the_groups() -> None:
    groups = shot_groups(torch.tensor([0, 19, 20, 100, 101]))
    assert list(groups) == ["many", "medium", "few"]
    assert groups["few"].tolist() == [True, True, False, False, False]
    assert groups["medium"].tolist() == [False, False, True, True, False]
    assert groups["many"].tolist() == [False, False, False, False, True]


@given(counts_lists)
def test_each_class_is_in_exactly_one_group(counts: list[int]) -> None:
    for groups in (shot_groups(counts), third_groups(counts)):
        assert torch.stack(list(groups.values())).sum(dim=0).tolist() == [1] * len(counts)


@given(counts_lists)
def test_thirds_are_even_and_ordered(counts: list[int]) -> None:
    groups = third_groups(counts)
    members = [torch.tensor(counts)[mask].tolist() for mask in groups.values()]
    sizes = [len(group) for group in members]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] - sizes[2] <= 1
    joined = [count for group in members for count in sorted(group, reverse=True)]
    assert joined == sorted(counts, reverse=True)


def test_thirds_break_ties_by_label() -> None:
    groups = third_groups([7, 7, 7])
    assert [mask.tolist().index(True) for mask in groups.values()] == [0, 1, 2]


@pytest.mark.parametrize("counts", [[], [3, -1], [[1, 2], [3, 4]]])
def test_bad_counts_are_refused(counts: list[int]) -> None:
    for function in (shot_groups, third_groups):
        with pytest.raises(ValueError, match="train_counts"):
            function(counts)


def sample(seed: int, n: int, k: int) -> tuple[Tensor, Tensor]:
    """Logits (N, K) that lean to their target, and targets (N,)."""
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randint(k, (n,), generator=generator)
    logits = torch.randn(n, k, generator=generator)
    logits[torch.arange(n), targets] += 1.0
    return logits, targets


@settings(max_examples=25)
@given(seed=st.integers(0, 10_000), n=st.integers(1, 80), k=st.integers(2, 9))
def test_metrics_equal_sklearn_and_a_loop(seed: int, n: int, k: int) -> None:
    logits, targets = sample(seed, n, k)
    counts = torch.randint(0, 200, (k,), generator=torch.Generator().manual_seed(seed))
    groups = shot_groups(counts)
    metrics = LongTailedMetrics(k, groups)
    for start in range(0, n, 7):
        metrics.update(logits[start : start + 7], targets[start : start + 7])
    result = metrics.compute()

    predictions = logits.argmax(dim=1).tolist()
    truth = targets.tolist()
    labels = list(range(k))
    assert (
        metrics.confusion.tolist() == confusion_matrix(truth, predictions, labels=labels).tolist()
    )
    assert result["all"] == pytest.approx(100 * accuracy_score(truth, predictions))
    recalls = recall_score(truth, predictions, labels=labels, average=None, zero_division=math.nan)
    assert metrics.per_class.tolist() == pytest.approx((100 * recalls).tolist(), nan_ok=True)

    expected: dict[str, list[float]] = {"mean_class": []}
    for c in sorted(set(truth)):
        right = [p == c for p, y in zip(predictions, truth, strict=True) if y == c]
        count = int(counts[c])
        name = "many" if count > 100 else "few" if count < 20 else "medium"
        expected.setdefault(name, []).append(100 * sum(right) / len(right))
        expected["mean_class"].append(100 * sum(right) / len(right))
    assert set(result) == {"all", "ece", *expected}
    for name, accuracies in expected.items():
        assert result[name] == pytest.approx(sum(accuracies) / len(accuracies))
    assert result["ece"] == pytest.approx(
        calibration_error(logits.softmax(dim=1), targets), abs=1e-9
    )
    assert all(type(value) is float for value in result.values())


def test_a_class_without_test_samples_is_nan_and_not_averaged() -> None:
    confusion = torch.tensor([[1, 1, 0], [0, 0, 0], [0, 0, 4]])
    accuracies = per_class_accuracy(confusion)
    assert accuracies.dtype == torch.float64
    assert accuracies.tolist() == pytest.approx([50.0, math.nan, 100.0], nan_ok=True)
    result = shot_accuracy(confusion, shot_groups([500, 300, 50]))
    assert result == {"all": pytest.approx(500 / 6), "many": 50, "medium": 100, "mean_class": 75}


def test_the_caller_may_reuse_its_target_memory() -> None:
    metrics = LongTailedMetrics(2, {})
    targets = torch.tensor([0])
    metrics.update(torch.tensor([[9.0, 0.0]]), targets)
    targets.fill_(1)
    assert metrics.confusion.tolist() == [[1, 0], [0, 0]]


def test_half_precision_logits_and_graphs_are_not_kept() -> None:
    logits, targets = sample(0, 40, 5)
    exact, half = LongTailedMetrics(5, {}), LongTailedMetrics(5, {})
    rounded = logits.bfloat16().requires_grad_()
    half.update(rounded, targets)
    exact.update(rounded.detach().double(), targets)
    assert half.compute() == pytest.approx(exact.compute(), abs=1e-4)
    assert not half.per_class.requires_grad


def test_nan_logits_give_nan_calibration_and_no_crash() -> None:
    metrics = LongTailedMetrics(2, {})
    metrics.update(torch.tensor([[1.0, 2.0], [math.nan, math.nan]]), torch.tensor([0, 1]))
    assert math.isnan(metrics.compute()["ece"])


def test_a_metric_without_samples_has_no_result() -> None:
    with pytest.raises(ValueError, match="update"):
        LongTailedMetrics(2, {}).compute()


@pytest.mark.parametrize("target", [-1, 3])
def test_foreign_targets_are_refused(target: int) -> None:
    metrics = LongTailedMetrics(3, {})
    metrics.update(torch.zeros(2, 3), torch.tensor([0, target]))
    with pytest.raises(ValueError, match=r"outside 0\.\.2"):
        metrics.compute()


def test_wrong_shapes_and_groups_are_refused() -> None:
    metrics = LongTailedMetrics(3, {})
    for logits, targets in [((2, 4), (2,)), ((2, 3), (3,)), ((2, 3), (2, 3)), ((3,), (1,))]:
        with pytest.raises(ValueError, match=r"logits \(N, 3\)"):
            metrics.update(torch.zeros(logits), torch.zeros(targets))
    with pytest.raises(ValueError, match="bool mask"):
        LongTailedMetrics(3, shot_groups([1, 2]))
    with pytest.raises(ValueError, match="bool mask"):
        shot_accuracy(torch.eye(2), {"many": torch.tensor([0, 1])})
    with pytest.raises(ValueError, match=r"\(K, K\)"):
        per_class_accuracy(torch.zeros(2, 3))
    with pytest.raises(ValueError, match="no test sample"):
        shot_accuracy(torch.zeros(2, 2), {})


# Calibration.


def calibration_error(probabilities: Tensor, targets: Tensor) -> float:
    confidences, predictions = probabilities.max(dim=1)
    return top1_calibration_error(confidences, predictions == targets)


def brute_force(confidences: list[float], correct: list[bool]) -> float:
    """Percent, with a loop over bins and samples; a confidence of 1 is in the last bin."""
    total, bins = 0.0, 15
    for b in range(bins):
        inside = [
            i
            for i, confidence in enumerate(confidences)
            if b / bins <= confidence < (b + 1) / bins or (b == bins - 1 and confidence == 1.0)
        ]
        if inside:
            accuracy = sum(correct[i] for i in inside) / len(inside)
            confidence = sum(confidences[i] for i in inside) / len(inside)
            total += len(inside) / len(confidences) * abs(accuracy - confidence)
    return 100 * total


@settings(max_examples=40)
@given(
    seed=st.integers(0, 10_000),
    n=st.integers(1, 60),
    k=st.integers(2, 6),
    sharpness=st.sampled_from([0.5, 3.0, 30.0]),
)
def test_equals_brute_force(seed: int, n: int, k: int, sharpness: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = sharpness * torch.randn(n, k, generator=generator)
    probabilities = logits.softmax(dim=1)
    targets = torch.randint(k, (n,), generator=generator)
    confidences, predictions = probabilities.max(dim=1)
    expected = brute_force(confidences.tolist(), (predictions == targets).tolist())
    assert calibration_error(probabilities, targets) == pytest.approx(expected, abs=1e-9)


def test_saturated_confidences_share_the_last_bin() -> None:
    # One bin: mean confidence 0.99, accuracy 0.5. Apart, 1.0 and 0.98 would give 51.
    confidences = torch.tensor([1.0, 0.98])
    assert top1_calibration_error(confidences, torch.tensor([False, True])) == pytest.approx(49.0)


def test_a_bin_holds_its_lower_bound() -> None:
    bound = torch.linspace(0, 1, 16, dtype=torch.float64)[3]
    confidences = torch.stack((bound, bound + 0.05))
    # In one bin the two differences cancel in part: -0.2 and +0.75.
    found = top1_calibration_error(confidences, torch.tensor([False, True]))
    assert found == pytest.approx(27.5)


def test_logits_and_empty_sets_are_refused() -> None:
    with pytest.raises(ValueError, match="softmax"):
        calibration_error(torch.tensor([[4.0, 1.0]]), torch.tensor([0]))
    with pytest.raises(ValueError, match="non-empty"):
        top1_calibration_error(torch.rand(0), torch.zeros(0))
