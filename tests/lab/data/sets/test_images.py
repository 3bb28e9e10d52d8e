from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch

from batchformer.lab.data.sets.images import ImageSplit, LongTailedData


def _split(labels: list[int], size: int = 4) -> ImageSplit:
    x = torch.zeros(len(labels), 3, size, size, dtype=torch.uint8)
    return ImageSplit(x, torch.tensor(labels))


def _data(train: list[int], test: list[int], size: int = 4) -> LongTailedData:
    return LongTailedData(_split(train), _split(test, size), ("a", "b", "c"), "toy")


def test_train_counts_include_absent_classes() -> None:
    assert _data([0, 0, 0, 1], [0, 1, 2]).train_counts.tolist() == [3, 1, 0]


def test_length() -> None:
    assert len(_split([0, 1])) == 2


def test_from_channels_last() -> None:
    images = np.arange(2 * 3 * 4 * 3, dtype=np.uint8).reshape(2, 3, 4, 3)
    split = ImageSplit.from_channels_last(images, np.array([1, 0], dtype=np.uint8))
    assert split.x.shape == (2, 3, 3, 4)
    assert split.x.is_contiguous()
    for n, row, column, channel in np.ndindex(images.shape):
        assert split.x[n, channel, row, column] == images[n, row, column, channel]
    assert split.y.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (torch.zeros(2, 3, 4, 4), torch.zeros(2).long(), "x must be uint8"),
        (torch.zeros(2, 3, 4).byte(), torch.zeros(2).long(), r"shape \(2, 3, 4\)"),
        (torch.zeros(2, 3, 4, 4).byte(), torch.zeros(2).int(), "y must be int64"),
        (torch.zeros(2, 3, 4, 4).byte(), torch.zeros(2, 1).long(), r"shape \(2, 1\)"),
        (torch.zeros(2, 3, 4, 4).byte(), torch.zeros(3).long(), "2 images but 3 labels"),
    ],
)
def test_malformed_splits(x: torch.Tensor, y: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ImageSplit(x, y)


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        ([0, 3], [0], "training labels run from 0 to 3"),
        ([0, 1], [-1, 2], "test labels run from -1 to 2"),
    ],
)
def test_labels_outside_the_classes(train: list[int], test: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _data(train, test)


def test_parts_of_different_size() -> None:
    with pytest.raises(ValueError, match=r"\(3, 4, 4\) but test images are \(3, 5, 5\)"):
        _data([0], [0], size=5)


def test_the_hash_knows_every_pixel_and_label_of_both_parts() -> None:
    """Worked out independently: types, shapes and bytes, part by part."""

    def made(changed: str = "") -> LongTailedData:
        data = _data([0, 0, 2], [1, 2])
        for name, part in (("train", data.train), ("test", data.test)):
            if changed == f"{name} pixel":
                part.x[1, 2, 3, 3] = 1
            elif changed == f"{name} label":
                part.y[1] = 0 if name == "test" else 1
        return data

    def sha(text: str, *arrays: bytes) -> str:
        return hashlib.sha256(text.encode() + b"".join(arrays)).hexdigest()

    def part_sha(part: ImageSplit) -> str:
        n = len(part)
        images = f"torch.uint8 ({n}, 3, 4, 4)\n".encode() + part.x.numpy().tobytes()
        return sha("", images, f"torch.int64 ({n},)\n".encode(), part.y.numpy().tobytes())

    data = made()
    train, test = part_sha(data.train), part_sha(data.test)
    assert data.train_sha256 == train
    assert data.split_sha256 == sha(f"text 5\na\nb\nctext 64\n{train}text 64\n{test}")
    changes = ("train pixel", "train label", "test pixel", "test label")
    hashes = {data.split_sha256, *(made(change).split_sha256 for change in changes)}
    assert len(hashes) == 5
    same = [made(change).train_sha256 == data.train_sha256 for change in changes]
    assert same == [False, False, True, True]
