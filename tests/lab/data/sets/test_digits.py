from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits

from batchformer.lab.data.sets.digits import LARGEST_CLASS, TEST_PER_CLASS, digits_lt
from batchformer.lab.data.sets.images import LongTailedData
from batchformer.lab.data.transforms import digits_test, digits_train
from batchformer.lab.models.networks import digits_net


def _rows(x: torch.Tensor) -> set[bytes]:
    return {image.numpy().tobytes() for image in x}


def test_sizes() -> None:
    data = digits_lt()
    assert data.train_counts.tolist() == [124, 80, 51, 33, 21, 14, 9, 5, 3, 2]
    assert torch.bincount(data.test.y).tolist() == [TEST_PER_CLASS] * 10
    assert data.train.x.shape == (342, 1, 8, 8)
    assert data.classes == tuple("0123456789")


def test_split_is_fixed() -> None:
    recorded = "90c6592d87a0f5d1b232bb6464a88c539d392a5d89239ac40a7719a21373b4b6"
    assert digits_lt().split_sha256 == recorded
    assert digits_lt(seed=1).split_sha256 != recorded
    assert digits_lt(ratio=20).split_sha256 != recorded


def test_training_and_test_images_are_distinct_images_of_the_set() -> None:
    data = digits_lt()
    source = load_digits()
    # 16 grey levels to 0..255: 16 becomes 255 and 8 becomes 127.5, rounded to even.
    scaled = np.rint(source.images * 255 / 16).astype(np.uint8)
    label_of = {image.tobytes(): label for image, label in zip(scaled, source.target, strict=True)}
    assert len(label_of) == len(scaled), "all images of the set differ"
    assert not _rows(data.train.x) & _rows(data.test.x)
    for part in (data.train, data.test):
        assert len(_rows(part.x)) == len(part)
        for image, label in zip(part.x, part.y.tolist(), strict=True):
            assert label_of[image.numpy().tobytes()] == label
    assert int(data.train.x.max()) == 255


def test_steeper_tail_lies_inside_the_flatter() -> None:
    assert _rows(digits_lt(ratio=100).train.x) < _rows(digits_lt(ratio=50).train.x)


def test_ratio_without_an_image_is_refused() -> None:
    with pytest.raises(ValueError, match=f"at most {LARGEST_CLASS}"):
        digits_lt(ratio=125)


def _mean_per_class_accuracy(data: LongTailedData, steps: int) -> float:
    """A plain cross-entropy baseline."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    net, transform = digits_net(10), digits_train()
    optimizer = torch.optim.AdamW(net.parameters(), weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, steps)
    for _ in range(steps):
        batch = torch.randperm(len(data.train), generator=generator)[:128]
        logits = net(
            transform(
                data.train.x[batch],
                torch.rand(len(batch), transform.draws, generator=generator, dtype=torch.float64),
            )
        )
        optimizer.zero_grad()
        F.cross_entropy(logits, data.train.y[batch]).backward()
        optimizer.step()
        schedule.step()
    net.eval()
    with torch.no_grad():
        correct = (net(digits_test()(data.test.x)).argmax(1) == data.test.y).float()
    return torch.stack([correct[data.test.y == c].mean() for c in range(10)]).mean().item()


def test_baseline_reaches_85_percent() -> None:
    assert _mean_per_class_accuracy(digits_lt(), steps=150) >= 0.85
