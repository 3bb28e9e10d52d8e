"""Digits: a fixed long tail, and every digit in one domain, rotated by its angle."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage
from sklearn.datasets import load_digits

from batchformer.lab.data.sets.digits import (
    ANGLES,
    LARGEST_CLASS,
    SIDE,
    TEST_PER_CLASS,
    digits_lt,
    rotated,
    rotated_digits,
    split_evenly,
)
from batchformer.lab.data.sets.images import split_hash
from batchformer.lab.data.transforms import Compose, RandomCrop, digits_test, digits_train

SOURCE = load_digits()
LABELS = torch.from_numpy(SOURCE.target)


def _rows(x: torch.Tensor) -> set[bytes]:
    return {image.numpy().tobytes() for image in x}


def test_sizes() -> None:
    data = digits_lt()
    assert data.train_counts.tolist() == [124, 80, 51, 33, 21, 14, 9, 5, 3, 2]
    assert torch.bincount(data.test.labels).tolist() == [TEST_PER_CLASS] * 10
    assert data.train.x.shape == (342, 1, 8, 8)
    assert data.classes == tuple("0123456789")
    recorded = "90c6592d87a0f5d1b232bb6464a88c539d392a5d89239ac40a7719a21373b4b6"
    assert data.split_sha256 == recorded != digits_lt(seed=1).split_sha256
    assert _rows(digits_lt(ratio=100).train.x) < _rows(data.train.x), "a steeper tail lies inside"
    with pytest.raises(ValueError, match=f"at most {LARGEST_CLASS}"):
        digits_lt(ratio=125)


def test_training_and_test_images_are_distinct_images_of_the_set() -> None:
    data = digits_lt()
    # 16 grey levels to 0..255: 16 becomes 255 and 8 becomes 127.5, rounded to even.
    scaled = np.rint(SOURCE.images * 255 / 16).astype(np.uint8)
    label_of = {image.tobytes(): label for image, label in zip(scaled, SOURCE.target, strict=True)}
    assert len(label_of) == len(scaled), "all images of the set differ"
    assert not _rows(data.train.x) & _rows(data.test.x)
    for part in (data.train, data.test):
        assert len(_rows(part.x)) == len(part)
        for image, label in zip(part.x, part.labels.tolist(), strict=True):
            assert label_of[image.numpy().tobytes()] == label
    assert int(data.train.x.max()) == 255


def enlarged(rows: torch.Tensor) -> np.ndarray:
    """(N, 16, 16) grey levels, by interpolation at the centres of the new pixels."""
    at = (np.arange(SIDE) + 0.5) / 2 - 0.5
    grid = np.meshgrid(at, at, indexing="ij")
    images = SOURCE.images[rows.numpy()] * 255 / 16
    return np.stack([ndimage.map_coordinates(i, grid, order=1, mode="nearest") for i in images])


def test_what_the_domains_hold() -> None:
    data = rotated_digits()
    assert data.domains == ("r0", "r15", "r30", "r45", "r60", "r75")
    assert data.classes == tuple("0123456789")
    assert sorted(data.sizes.values()) == [299] * 3 + [300] * 3
    assert int((data.counts.amax(0) - data.counts.amin(0)).max()) == 1
    assert data.counts.sum(0).tolist() == LABELS.bincount().tolist()
    for part in data.parts:
        assert part.x.shape[1:] == (1, SIDE, SIDE) and part.x.dtype == torch.uint8


@settings(max_examples=30)
@given(st.lists(st.integers(0, 4), max_size=60), st.integers(1, 7))
def test_splitting(labels: list[int], domains: int) -> None:
    y = torch.tensor(labels, dtype=torch.int64)
    parts = split_evenly(y, domains)
    assert len(parts) == domains
    assert sorted(torch.cat(parts).tolist()) == list(range(len(labels)))
    counts = torch.stack([y[rows].bincount(minlength=5) for rows in parts])
    assert int((counts.amax(0) - counts.amin(0)).max()) <= 1
    sizes = counts.sum(1)
    assert int(sizes.max() - sizes.min()) <= 1
    assert all(rows.tolist() == sorted(rows.tolist()) for rows in parts)


def test_the_split_is_fixed_and_the_first_domain_upright() -> None:
    recorded = "8b360f9f60d1d5bec51ce080f9e479e243a43fcfcff60b73b8c271b0d3a82213"
    split = split_evenly(LABELS, len(ANGLES))
    assert split_hash(torch.cat(split)) == recorded
    got = rotated_digits().parts[0].x[:, 0].numpy().astype(float)
    assert np.abs(got - enlarged(split[0])).max() <= 0.5 + 1e-6


@pytest.mark.parametrize("domain", [1, 5])
def test_digits_are_turned_as_scipy_does(domain: int) -> None:
    rows = split_evenly(LABELS, len(ANGLES))[domain]
    part = rotated_digits().parts[domain]
    assert torch.equal(part.labels, LABELS[rows])
    angle = ANGLES[domain]
    expected = ndimage.rotate(enlarged(rows), angle, axes=(2, 1), reshape=False, order=1)
    centre = (SIDE - 1) / 2
    down, across = np.mgrid[:SIDE, :SIDE] - centre
    inner = np.hypot(down, across) <= centre  # these come from inside the image at any angle
    difference = np.abs(part.x[:, 0].numpy() - expected)[:, inner]
    assert difference.max() <= 1


def test_they_are_normalised_by_the_statistics_of_the_set() -> None:
    assert digits_train() == Compose((RandomCrop(1), digits_test()))
    levels = SOURCE.images / 16
    assert digits_test().mean == pytest.approx((levels.mean(),), abs=1e-4)
    assert digits_test().std == pytest.approx((levels.std(),), abs=1e-4)


def test_a_quarter_turn_is_counter_clockwise_and_corners_are_black() -> None:
    levels = torch.arange(64, dtype=torch.float64).view(1, 1, 8, 8)
    assert torch.equal(rotated(levels, 90), levels.rot90(1, (2, 3)).to(torch.uint8))
    white = rotated(torch.full((1, 1, 16, 16), 255.0, dtype=torch.float64), 45)
    assert white[0, 0, 0, 0] == 0 and white[0, 0, 8, 8] == 255
