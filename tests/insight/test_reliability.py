"""Predictions by confidence against torchmetrics and loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torchmetrics.functional.classification import binary_calibration_error

from batchformer.insight.reliability import reliability


@pytest.fixture
def predictions() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    confidence = torch.rand(400, generator=draw)
    confidence[:3] = torch.tensor([0.0, 1.0, 0.5])
    return confidence, torch.rand(400, generator=draw) < confidence, torch.arange(400) % 2 * 2


def test_the_calibration_error_follows(
    predictions: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
) -> None:
    confidence, correct, shot = predictions
    found = reliability(confidence, correct, shot)
    groups = (torch.ones(400, dtype=torch.bool), shot == 0, shot == 1, shot == 2)
    for row, own in enumerate(groups):
        count, sure, right = (
            found[f"reliability_{name}"][row] for name in ("count", "confidence", "correct")
        )
        assert count.sum() == int(own.sum()) and right.sum() == int(correct[own].sum())
        if not own.any():
            continue
        error = np.abs(sure - right).sum() / count.sum()
        below_one = confidence[own].double().clamp(max=1 - 1e-9)
        expected = binary_calibration_error(below_one, correct[own].long(), n_bins=15, norm="l1")
        assert error == pytest.approx(float(expected), abs=1e-6)


def test_edges_are_in_the_upper_bin_and_one_in_the_last() -> None:
    confidence = torch.tensor([0.0, 0.5, 0.49, 1.0])
    right = torch.tensor([True, False, True, True])
    found = reliability(confidence, right, torch.tensor([0, 0, 1, 2]), bins=2)
    assert found["reliability_count"].tolist() == [[2, 2], [1, 1], [1, 0], [0, 1]]
    assert found["reliability_correct"].tolist() == [[2, 1], [1, 0], [1, 0], [0, 1]]
    np.testing.assert_allclose(found["reliability_confidence"][0], [0.49, 1.5], rtol=1e-6)
