from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from batchformer.lab.data.feeds.detection import (
    DetectionFeed,
    ShownReader,
    scored_images,
)
from batchformer.lab.data.files.decode import DamagedImageError
from batchformer.lab.data.sets.voc import BoxedImage

LENGTHS = (24, 32, 40)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> list[BoxedImage]:
    """Seven images of noise and of different sizes, the n-th with n + 1 objects."""
    place, stream = tmp_path_factory.mktemp("images"), np.random.default_rng(0)
    made = []
    for number in range(7):
        height, width = 20 + 3 * number, 48 - 2 * number
        path = place / f"{number}.png"
        Image.fromarray(stream.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(path)
        corners = torch.arange(number + 1, dtype=torch.float32)[:, None]
        boxes = torch.cat((corners, corners, corners + 8, corners + 9), 1)
        labels = torch.arange(number + 1)
        made.append(BoxedImage(path, boxes, labels, torch.zeros(number + 1, dtype=torch.bool)))
    return made


def feed_of(images: Sequence[BoxedImage], **changes: Any) -> DetectionFeed:
    options: dict[str, Any] = {"batch_size": 3, "seed": 0, "drop_last": True, "workers": 0}
    return DetectionFeed(images, LENGTHS, 60, **{**options, **changes})


@pytest.fixture
def feed(images: list[BoxedImage]) -> Iterator[DetectionFeed]:
    made = feed_of(images)
    yield made
    made.close()


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    def tensors(batch: dict[str, Any]) -> list[Tensor]:
        return [t for v in batch.values() for t in (v if isinstance(v, list) else [v])]

    pairs = zip(tensors(one), tensors(other), strict=True)
    return list(one) == list(other) and all(torch.equal(a, b) for a, b in pairs)


def test_a_batch(feed: DetectionFeed, images: list[BoxedImage]) -> None:
    assert feed.per_epoch == 2
    batch = feed.batch(0)
    assert list(batch) == ["x", "boxes", "labels", "y", "index", "row"]
    assert batch["row"].tolist() == [0, 1, 2] and len(batch["y"]) == 3
    for row, index in enumerate(batch["index"].tolist()):
        x, boxes = batch["x"][row], batch["boxes"][row]
        assert x.dtype == torch.uint8 and x.shape[0] == 3
        assert min(x.shape[1:]) in LENGTHS or max(x.shape[1:]) == 60
        assert len(boxes) == len(batch["labels"][row]) == int(batch["y"][row]) == index + 1
        assert boxes.min() >= 0 and (boxes.amax(0)[2:] <= torch.tensor(x.shape[:0:-1])).all()
        ratio = x.shape[2] / x.shape[1]
        with Image.open(images[index].path) as file:
            assert ratio == pytest.approx(file.width / file.height, rel=0.05)


def test_a_batch_is_a_function_of_seed_and_step(images: list[BoxedImage]) -> None:
    one = feed_of(images)
    expected = [one.batch(step) for step in range(5)]
    for options in ({"workers": 2}, {"kept_bytes": 0}, {"workers": 3, "kept_bytes": 5000}):
        other = feed_of(images, **options)
        for step in (3, 4, 0, 1, 1, 2):
            assert same(other.batch(step), expected[step])
        other.close()
        assert same(other.batch(4), expected[4])  # opens again
        other.close()
    assert not same(expected[0], expected[2])
    assert not same(feed_of(images, seed=1).batch(0), expected[0])


def test_every_length_is_drawn_and_half_of_the_images_are_mirrored(feed: DetectionFeed) -> None:
    jobs = [job for step in range(400) for job in feed.jobs(step)]
    for length in LENGTHS:
        share = sum(job.shorter == length for job in jobs) / len(jobs)
        assert share == pytest.approx(1 / 3, abs=0.06)  # 4.4 standard deviations
    assert sum(job.flip for job in jobs) / len(jobs) == pytest.approx(0.5, abs=0.065)
    both = sum(job.flip and job.shorter == 24 for job in jobs) / len(jobs)
    assert both == pytest.approx(1 / 6, abs=0.05)  # drawn apart


def test_an_epoch_has_every_image_once(images: list[BoxedImage]) -> None:
    feed = feed_of(images, drop_last=False)
    index = torch.cat([feed.batch(step)["index"] for step in range(feed.per_epoch)])
    assert sorted(index.tolist()) == list(range(7))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_damaged_image_is_named_and_the_feed_goes_on(
    workers: int, images: list[BoxedImage], tmp_path: Path
) -> None:
    bad = tmp_path / "bad.jpg"
    bad.write_bytes(b"no image")
    broken = [BoxedImage(bad, i.boxes, i.labels, i.difficult) for i in images[:1]] + images[1:]
    feed = feed_of(broken, workers=workers, batch_size=1)
    fine = [step for step in range(7) if feed.steps.index(step).tolist() != [0]]
    (wrong,) = set(range(7)) - set(fine)
    with pytest.raises(DamagedImageError, match=r"bad\.jpg"):
        feed.batch(wrong)
    assert same(feed.batch(fine[0]), feed_of(images, batch_size=1).batch(fine[0]))
    feed.close()


def test_small_images_are_kept_and_no_more(images: list[BoxedImage]) -> None:
    sizes = [3 * (20 + 3 * n) * (48 - 2 * n) for n in range(7)]
    reader = ShownReader(60, kept_bytes=sizes[0] + sizes[1])
    first = [reader.decoded(image.path) for image in images[:3]]
    assert reader.left == 0
    again = [reader.decoded(image.path) for image in images[:3]]
    assert [a is b for a, b in zip(first, again, strict=True)] == [True, True, False]
    assert torch.equal(first[2], again[2])


@pytest.mark.parametrize("workers", [0, 2])
def test_scored_images_come_in_order_and_as_they_are(
    workers: int, images: list[BoxedImage]
) -> None:
    made = list(scored_images(images, shorter=32, longest=60, workers=workers))
    assert [len(image.labels) for image in made] == [1, 2, 3, 4, 5, 6, 7]
    expected = ShownReader(60, 0).decoded(images[0].path)
    height, width = made[0].x.shape[1:]
    assert made[0].scale == (width / expected.shape[2], height / expected.shape[1])
    first = next(iter(scored_images(images, 32, 60, workers)))  # nobody asks for the others
    assert torch.equal(first.x, made[0].x)
