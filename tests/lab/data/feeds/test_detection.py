"""Images with boxes: resized with their boxes, and batches that are a function of the step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor

from batchformer.lab.data.feeds.detection import (
    DetectionFeed,
    resize_boxes,
    resize_image,
    resized,
    scored_images,
)
from batchformer.lab.data.feeds.order import Steps
from batchformer.lab.data.feeds.samplers import Shuffle
from batchformer.lab.data.files.decode import decode
from batchformer.lab.data.sets.voc import BoxedImage
from batchformer.nn.randomness import generator
from helpers.data_files import noise_files
from helpers.lab_runs import same

LENGTHS = (24, 32, 40)
ORDER = Steps(Shuffle(7, seed=0), 3, drop_last=True)


@given(
    height=st.integers(10, 2000),
    width=st.integers(10, 2000),
    shorter=st.integers(8, 900),
    room=st.integers(0, 900),
)
def test_sizes(height: int, width: int, shorter: int, room: int) -> None:
    longest = shorter + room
    new = resized(height, width, shorter, longest)
    assert max(new) <= longest
    # One of the two bounds is met, and the other side follows to the nearest pixel.
    assert min(new) == shorter or max(new) == longest
    scale = min(shorter / min(height, width), longest / max(height, width))
    assert abs(new[0] - height * scale) <= 0.5 + 1e-6 or new[0] == 1
    assert abs(new[1] - width * scale) <= 0.5 + 1e-6 or new[1] == 1


def size_of(x: Tensor) -> tuple[int, int]:
    return x.shape[1], x.shape[2]


def painted(height: int, width: int, box: Sequence[int]) -> Tensor:
    """White where the box is, black elsewhere; (3, H, W) uint8."""
    x = torch.zeros(3, height, width, dtype=torch.uint8)
    x[:, box[1] : box[3], box[0] : box[2]] = 255
    return x


@settings(max_examples=60, deadline=None)
@given(data=st.data(), flip=st.booleans(), shorter=st.integers(30, 90))
def test_the_box_stays_around_what_it_was_around(data: Any, flip: bool, shorter: int) -> None:
    """The border of a painted box is found in the pixels, and is where the new box says."""
    height, width = (data.draw(st.integers(30, 70)) for _ in range(2))
    left, top = data.draw(st.integers(0, width - 12)), data.draw(st.integers(0, height - 12))
    right, bottom = (
        data.draw(st.integers(left + 10, width)),
        data.draw(st.integers(top + 10, height)),
    )
    x = painted(height, width, (left, top, right, bottom))
    boxes = torch.tensor([[left, top, right, bottom]], dtype=torch.float32)
    made = resize_image(x, shorter, 10_000, flip)
    new, labels = resize_boxes(boxes, torch.tensor([7]), (height, width), size_of(made), flip)
    white = made[0] >= 128
    columns, rows = white.any(0).nonzero()[:, 0], white.any(1).nonzero()[:, 0]
    seen = [int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1]
    np.testing.assert_allclose(new[0].numpy(), seen, atol=1.01)
    assert labels.tolist() == [7]


def test_worked_example_of_a_mirrored_image() -> None:
    x = torch.arange(3 * 2 * 4, dtype=torch.uint8).reshape(3, 2, 4)
    boxes = torch.tensor([[0.0, 0.0, 1.0, 2.0], [2.5, 1.0, 4.0, 2.0]])
    assert torch.equal(resize_image(x, shorter=2, longest=10, flip=True), x.flip(2))
    boxes, _ = resize_boxes(boxes, torch.tensor([0, 1]), (2, 4), (2, 4), flip=True)
    assert boxes.tolist() == [[3, 0, 4, 2], [0, 1, 1.5, 2]]


def test_boxes_are_cut_at_the_border_and_empty_ones_left_out() -> None:
    boxes = torch.tensor([[-5.0, 2, 5, 30], [25, 0, 30, 5], [0, -9, 20, 0], [1, 1, 2, 2]])
    made, labels = resize_boxes(boxes, torch.arange(4), (10, 20), (20, 40))
    assert made.tolist() == [[0, 4, 10, 20], [2, 2, 4, 4]]
    assert labels.tolist() == [0, 3]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> list[BoxedImage]:
    """Seven images of different sizes, the n-th with n + 1 objects."""
    sizes = [(20 + 3 * number, 48 - 2 * number) for number in range(7)]
    files = noise_files(tmp_path_factory.mktemp("images"), sizes)
    made = []
    for number, path in enumerate(files.paths):
        corners = torch.arange(number + 1, dtype=torch.float32)[:, None]
        boxes = torch.cat((corners, corners, corners + 8, corners + 9), 1)
        labels, difficult = torch.arange(number + 1), torch.zeros(number + 1, dtype=torch.bool)
        made.append(BoxedImage(files.root / path, boxes, labels, difficult))
    return made


def feed_of(images: Sequence[BoxedImage], **changes: Any) -> DetectionFeed:
    options: dict[str, Any] = {"order": ORDER, "seed": 0, "workers": 0}
    return DetectionFeed(images, LENGTHS, 60, **{**options, **changes})


def test_a_batch_is_what_its_parts_make(images: list[BoxedImage]) -> None:
    feed = feed_of(images, seed=7)
    assert feed.per_epoch == 2
    for step in (0, 3):
        batch, index = feed.batch(step), ORDER.index(step)
        assert list(batch) == ["x", "boxes", "labels", "y", "index", "row", "objects_per_image"]
        assert batch["objects_per_image"] == pytest.approx(float((index + 1).float().mean()))
        assert torch.equal(batch["index"], index) and batch["row"].tolist() == [0, 1, 2]
        assert torch.equal(batch["y"], index + 1), "objects of each image"
        u = torch.rand(3, 2, generator=generator(7, "augmentation", step), dtype=torch.float64)
        for row, (number, (mirrored, length)) in enumerate(
            zip(index.tolist(), u.tolist(), strict=True)
        ):
            file, flip = decode(images[number].path), mirrored < 0.5
            x = resize_image(file, LENGTHS[int(3 * length)], 60, flip)
            boxes, labels = resize_boxes(
                images[number].boxes, images[number].labels, size_of(file), size_of(x), flip
            )
            assert torch.equal(batch["x"][row], x) and torch.equal(batch["boxes"][row], boxes)
            assert torch.equal(batch["labels"][row], labels)


def test_boxes_outside_of_an_image_are_said_once_in_a_folder(tmp_path: Path) -> None:
    """As where images were turned, or made smaller, after they were annotated."""
    made = []
    for i in range(3):
        image = Image.new("RGB", (40, 20))
        turned = image.getexif()
        turned[274] = 6
        image.save(tmp_path / f"{i}.jpg", exif=turned)
        boxes = torch.tensor([[2.0, 2, 15, 15], [25.0, 2, 39, 15]])
        made.append(BoxedImage(tmp_path / f"{i}.jpg", boxes, torch.tensor([0, 1]), boxes[:, 0] < 0))
    with pytest.warns(RuntimeWarning, match="outside of the image") as told:
        (seen, *_) = scored_images(made, 24, 80, workers=0)
        feed = DetectionFeed(
            made, LENGTHS, 80, Steps(Shuffle(3, seed=0), 3, drop_last=True), 0, workers=0
        )
        batch = feed.batch(0)
    assert seen.labels.tolist() == [0] and [len(y) for y in batch["labels"]] == [1, 1, 1]
    (words,) = (str(one.message) for one in told)
    assert words.startswith(f"1 of 2 boxes of {made[0].path} lie outside") and "20 x 40" in words


def test_scored_images_come_in_order_and_as_they_are(images: list[BoxedImage]) -> None:
    made = list(scored_images(images, shorter=32, longest=60, workers=2))
    assert [len(image.labels) for image in made] == [1, 2, 3, 4, 5, 6, 7]
    for image, got in zip(images, made, strict=True):
        file = decode(image.path)
        assert torch.equal(got.x, resize_image(file, 32, 60))
        height, width = got.x.shape[1:]
        assert got.scale == (width / file.shape[2], height / file.shape[1])
        boxes, _ = resize_boxes(image.boxes, image.labels, size_of(file), (height, width))
        assert torch.equal(got.boxes, boxes)
    first = next(scored_images(images, 32, 60, workers=0))  # nobody asks for the others
    assert torch.equal(first.x, made[0].x)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_on_the_gpu_are_those_of_the_cpu(workers: int, images: list[BoxedImage]) -> None:
    """Through pinned memory, on whichever stream asks."""
    on_cpu, on_gpu = feed_of(images), feed_of(images, device="cuda", workers=workers)
    streams = [torch.cuda.Stream() for _ in range(2)]  # type: ignore[no-untyped-call]
    for step in range(5):
        for stream in streams:
            with torch.cuda.stream(stream):
                got = on_gpu.batch(step)
            stream.synchronize()
            assert got["x"][0].is_cuda and got["boxes"][0].is_cuda
            moved = {k: [t.cpu() for t in v] if isinstance(v, list) else v for k, v in got.items()}
            assert same(moved, on_cpu.batch(step))
    on_gpu.close()
