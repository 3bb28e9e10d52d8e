"""Calibration against torchmetrics, feature space against scikit-learn and loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA
from torchmetrics.functional.classification import binary_calibration_error

from batchformer.insight.measures import principal_axes, reliability, separation_and_spread


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


@pytest.mark.parametrize("shape", [(60, 8), (9, 30), (12, 12)])
def test_axes_are_those_of_scikit_learn(shape: tuple[int, int]) -> None:
    features = torch.randn(shape, generator=torch.Generator().manual_seed(0)).double()
    features *= torch.linspace(3, 0.1, shape[1])
    points, share = principal_axes(features)
    pca = PCA(2, svd_solver="full").fit(features.numpy())
    expected = pca.transform(features.numpy())
    for axis, loadings in enumerate(pca.components_):
        sign = np.sign(loadings[np.abs(loadings).argmax()])
        np.testing.assert_allclose(points[:, axis], sign * expected[:, axis], atol=1e-9)
    np.testing.assert_allclose(share, pca.explained_variance_ratio_)


def test_features_without_a_second_axis_have_zeros_there() -> None:
    points, share = principal_axes(torch.tensor([[1.0], [3.0]]))
    assert points.tolist() == [[-1, 0], [1, 0]] and share.tolist() == [1, 0]
    points, share = principal_axes(torch.ones(4, 3))
    assert not points.any() and not share.any()


def test_separation_and_spread_are_those_of_loops() -> None:
    draw = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 5, (40,), generator=draw)
    features = torch.randn(40, 3, generator=draw) + labels[:, None] * 2
    shot_of_class = torch.tensor([0, 2, 0, 2, 2, 1])  # nobody is of class 5
    array, names = features.double().numpy(), labels.numpy()
    means = {c: array[names == c].mean(0) for c in range(5)}
    width = {c: np.linalg.norm(array[names == c] - means[c], axis=1).mean() for c in range(5)}
    nearest = {
        c: min(np.linalg.norm(means[c] - means[d]) for d in range(5) if d != c) for c in range(5)
    }
    separation, spread = separation_and_spread(features, labels, shot_of_class)
    for group, members in ((0, (0, 2)), (2, (1, 3, 4))):
        apart = np.mean([nearest[c] / width[c] for c in members])
        wide = np.mean([width[c] for c in members]) / np.mean(list(width.values()))
        assert float(separation[group]) == pytest.approx(apart)
        assert float(spread[group]) == pytest.approx(wide)
    assert bool(separation[1].isnan()) and bool(spread[1].isnan())


def test_a_class_of_one_sample_has_no_width_but_is_a_neighbour() -> None:
    features = torch.tensor([[0.0], [2.0], [3.0], [10.0], [12.0]])
    labels, shots = torch.tensor([0, 0, 1, 2, 2]), torch.tensor([0, 1, 2])
    separation, spread = separation_and_spread(features, labels, shots)
    assert separation[0] == 2 and separation[1].isnan() and separation[2] == 8
    assert spread[0] == spread[2] == 1
    separation, spread = separation_and_spread(
        torch.randn(4, 2), torch.zeros(4, dtype=torch.int64), torch.tensor([1])
    )
    assert separation.isnan().all() and spread[1] == 1
