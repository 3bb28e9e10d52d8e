from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from batchformer.lab.metrics.shots import expected_calibration_error, top1_calibration_error


def brute_force(confidences: list[float], correct: list[bool], bins: int) -> float:
    """Percent, with a loop over bins and samples; a confidence of 1 is in the last bin."""
    total = 0.0
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


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    n=st.integers(1, 60),
    k=st.integers(2, 6),
    bins=st.sampled_from([1, 5, 15]),
    sharpness=st.sampled_from([0.5, 3.0, 30.0]),
)
def test_equals_brute_force(seed: int, n: int, k: int, bins: int, sharpness: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = sharpness * torch.randn(n, k, generator=generator)
    probabilities = logits.softmax(dim=1)
    targets = torch.randint(k, (n,), generator=generator)
    confidences, predictions = probabilities.max(dim=1)
    expected = brute_force(confidences.tolist(), (predictions == targets).tolist(), bins)
    assert expected_calibration_error(probabilities, targets, bins) == pytest.approx(
        expected, abs=1e-9
    )


def test_saturated_confidences_share_the_last_bin() -> None:
    # One bin: mean confidence 0.99, accuracy 0.5. Apart, 1.0 and 0.98 would give 51.
    confidences = torch.tensor([1.0, 0.98])
    assert top1_calibration_error(confidences, torch.tensor([False, True])) == pytest.approx(49.0)


def test_nan_stays_nan() -> None:
    probabilities = torch.tensor([[0.5, 0.5], [math.nan, math.nan]])
    assert math.isnan(expected_calibration_error(probabilities, torch.tensor([0, 0])))


def test_logits_are_refused() -> None:
    with pytest.raises(ValueError, match="softmax"):
        expected_calibration_error(torch.tensor([[4.0, 1.0]]), torch.tensor([0]))


def test_wrong_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\(N, K\)"):
        expected_calibration_error(torch.rand(3), torch.zeros(3))
    with pytest.raises(ValueError, match=r"\(N, K\)"):
        expected_calibration_error(torch.rand(3, 2), torch.zeros(4))
    with pytest.raises(ValueError, match="non-empty"):
        top1_calibration_error(torch.rand(0), torch.zeros(0))
