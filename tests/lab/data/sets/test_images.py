"""Images in memory, their hashes, and long-tailed profiles."""

from __future__ import annotations

import hashlib
import struct
from decimal import Decimal, getcontext

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from batchformer.lab.data.sets.images import (
    ImageSplit,
    LongTailedData,
    class_counts,
    draw,
    split_hash,
)


def _split(labels: list[int], size: int = 4) -> ImageSplit:
    x = torch.zeros(len(labels), 3, size, size, dtype=torch.uint8)
    return ImageSplit(x, torch.tensor(labels))


def _data(train: list[int], test: list[int], size: int = 4) -> LongTailedData:
    return LongTailedData(_split(train), _split(test, size), ("a", "b", "c"), "toy")


def test_from_channels_last() -> None:
    images = np.arange(2 * 3 * 4 * 3, dtype=np.uint8).reshape(2, 3, 4, 3)
    split = ImageSplit.from_channels_last(images, np.array([1, 0], dtype=np.uint8))
    assert split.x.shape == (2, 3, 3, 4)
    assert split.x.is_contiguous()
    for n, row, column, channel in np.ndindex(images.shape):
        assert split.x[n, channel, row, column] == images[n, row, column, channel]
    assert split.labels.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (torch.zeros(2, 3, 4, 4), torch.zeros(2).long(), "x must be uint8"),
        (torch.zeros(2, 3, 4).byte(), torch.zeros(2).long(), r"shape \(2, 3, 4\)"),
        (torch.zeros(2, 3, 4, 4).byte(), torch.zeros(2).int(), "labels must be int64"),
        (torch.zeros(2, 3, 4, 4).byte(), torch.zeros(2, 1).long(), r"shape \(2, 1\)"),
        (torch.zeros(2, 3, 4, 4).byte(), torch.zeros(3).long(), "2 images but 3 labels"),
    ],
)
def test_malformed_splits(x: torch.Tensor, y: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ImageSplit(x, y)


def test_parts_that_do_not_belong_together() -> None:
    assert _data([0, 0, 0, 1], [0, 1, 2]).train_counts.tolist() == [3, 1, 0]
    for train, test, size, words in (
        ([0], [0], 5, r"toy, test part: images are \(3, 5, 5\) .*first part \(3, 4, 4\)"),
        ([0, 3], [0], 4, "toy, training part: labels run from 0 to 3"),
        ([0, 1], [-1, 2], 4, "toy, test part: labels run from -1 to 2"),
    ):
        with pytest.raises(ValueError, match=words):
            _data(train, test, size)


def test_the_hash_knows_every_pixel_and_label_of_both_parts() -> None:
    """Worked out independently: types, shapes and bytes, part by part."""

    def made(changed: str = "") -> LongTailedData:
        data = _data([0, 0, 2], [1, 2])
        for name, part in (("train", data.train), ("test", data.test)):
            if changed == f"{name} pixel":
                part.x[1, 2, 3, 3] = 1
            elif changed == f"{name} label":
                part.labels[1] = 0 if name == "test" else 1
        return data

    def sha(text: str, *arrays: bytes) -> str:
        return hashlib.sha256(text.encode() + b"".join(arrays)).hexdigest()

    def part_sha(part: ImageSplit) -> str:
        n = len(part)
        images = f"torch.uint8 ({n}, 3, 4, 4)\n".encode() + part.x.numpy().tobytes()
        return sha("", images, f"torch.int64 ({n},)\n".encode(), part.labels.numpy().tobytes())

    data = made()
    train, test = part_sha(data.train), part_sha(data.test)
    assert data.train.sha256 == train
    assert data.split_sha256 == sha(f"text 5\na\nb\nctext 64\n{train}text 64\n{test}")
    changes = ("train pixel", "train label", "test pixel", "test label")
    hashes = {data.split_sha256, *(made(change).split_sha256 for change in changes)}
    assert len(hashes) == 5
    same = [made(change).train.sha256 == data.train.sha256 for change in changes]
    assert same == [False, False, True, True]


@pytest.mark.parametrize(
    ("n_max", "num_classes", "ratio", "total"),
    [
        (500, 100, 100, 10_847),
        (500, 100, 200, 9_502),
        (500, 100, 50, 12_608),
        (500, 100, 10, 19_573),
        (5000, 10, 100, 12_406),
        (5000, 10, 10, 20_431),
    ],
)
def test_published_numbers(n_max: int, num_classes: int, ratio: int, total: int) -> None:
    counts = class_counts(n_max, num_classes, ratio)
    assert (sum(counts), min(counts), max(counts)) == (total, n_max // ratio, n_max)


def test_step_profile_one_class_and_counts_that_rounding_would_lose() -> None:
    assert class_counts(7, 1, 100) == [7]
    assert int(49 * (1 / 49)) == 0 and class_counts(49, 2, 49) == [49, 1]
    assert class_counts(500, 100, 100, "step") == [500] * 50 + [5] * 50
    assert class_counts(10, 5, 3, "step") == [10, 10, 3, 3, 3]


@settings(max_examples=80)
@given(n_max=st.integers(1, 5000), num_classes=st.integers(2, 40), data=st.data())
def test_exponential_against_fifty_digits(
    n_max: int, num_classes: int, data: st.DataObject
) -> None:
    getcontext().prec = 50
    ratio = data.draw(st.integers(1, n_max))
    decay = 1 / Decimal(ratio)
    exact = [
        int(n_max * decay ** (Decimal(c) / (num_classes - 1)) + Decimal("1e-12"))
        for c in range(num_classes)
    ]
    assert class_counts(n_max, num_classes, ratio) == exact


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((500, 100, 0.01), "ratio 100 for an imbalance factor of 0.01"),
        ((500, 100, 1000), "ratio 1000 leaves class 90 without an image"),
        ((500, 100, 10, "linear"), "unknown profile 'linear'"),
    ],
)
def test_wrong_profiles(arguments: tuple[int, int, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        class_counts(*arguments)


def test_draw_is_the_widely_used_recipe() -> None:
    labels = np.random.RandomState(3).randint(0, 5, 400)
    counts = [40, 20, 10, 5, 1]
    np.random.seed(0)  # noqa: NPY002
    expected = []
    for c, count in zip(np.unique(labels), counts, strict=True):
        positions = np.where(labels == c)[0]
        np.random.shuffle(positions)  # noqa: NPY002
        expected.extend(positions[:count].tolist())
    state = np.random.get_state()[1].tolist()  # noqa: NPY002
    assert draw(labels, counts).tolist() == expected != draw(labels, counts, seed=1).tolist()
    assert np.random.get_state()[1].tolist() == state  # noqa: NPY002
    with pytest.raises(ValueError, match="class 1: 4 images wanted, 3 present"):
        draw([0, 0, 0, 0, 1, 1, 1], [4, 4])


def test_draw_of_cifar100_labels_is_fixed() -> None:
    """Labels in turn, 500 of each: no image is needed to fix the list."""
    kept = draw(np.tile(np.arange(100), 500), class_counts(500, 100, 100))
    assert len(kept) == 10_847
    assert split_hash(kept) == "7ebcb6242d814b39233926ff2bf7384134fe218439f2616771d2a54baec405cb"


def test_hash_is_over_little_endian_int64() -> None:
    indices = [0, 1, 258, 2**40]
    expected = hashlib.sha256(struct.pack("<4q", *indices)).hexdigest()
    assert split_hash(indices) == expected
    assert split_hash(np.array(indices, dtype=">i8")) == expected
