"""Images with boxes: their sizes, their boxes after resizing and mirroring, their decoding."""

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

from batchformer.lab.data.feeds.detection import decode_in_thread, resized, shown
from batchformer.lab.data.files.decode import decode


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
    made = shown(x, boxes, torch.tensor([7]), shorter, 10_000, flip)
    white = made.x[0] >= 128
    columns, rows = white.any(0).nonzero()[:, 0], white.any(1).nonzero()[:, 0]
    seen = [int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1]
    np.testing.assert_allclose(made.boxes[0].numpy(), seen, atol=1.01)
    assert made.labels.tolist() == [7]


def test_worked_example_of_a_mirrored_image() -> None:
    x = torch.arange(3 * 2 * 4, dtype=torch.uint8).reshape(3, 2, 4)
    boxes = torch.tensor([[0.0, 0.0, 1.0, 2.0], [2.5, 1.0, 4.0, 2.0]])
    made = shown(x, boxes, torch.tensor([0, 1]), shorter=2, longest=10, flip=True)
    assert torch.equal(made.x, x.flip(2)) and made.scale == (1, 1)
    assert made.boxes.tolist() == [[3, 0, 4, 2], [0, 1, 1.5, 2]]


def test_boxes_are_cut_at_the_border_and_empty_ones_left_out() -> None:
    x = torch.zeros(3, 10, 20, dtype=torch.uint8)
    boxes = torch.tensor([[-5.0, 2, 5, 30], [25, 0, 30, 5], [0, -9, 20, 0], [1, 1, 2, 2]])
    made = shown(x, boxes, torch.arange(4), shorter=20, longest=100)
    assert made.boxes.tolist() == [[0, 4, 10, 20], [2, 2, 4, 4]]
    assert made.labels.tolist() == [0, 3] and made.scale == (2, 2)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "I;16"])
def test_decoding_gives_what_it_gives_elsewhere(mode: str, tmp_path: Path) -> None:
    stream, path = np.random.default_rng(0), tmp_path / "image.png"
    if mode == "I;16":
        Image.fromarray(stream.integers(0, 2**16, (9, 12), dtype=np.uint16)).save(path)
    else:
        pixels = stream.integers(0, 256, (9, 12, 4), dtype=np.uint8)
        Image.fromarray(pixels, "RGBA").convert("RGB" if mode == "P" else mode).convert(mode).save(
            path
        )
    with Image.open(path) as file:
        assert file.mode == mode
    assert torch.equal(decode_in_thread(path), decode(path))


def test_images_are_turned_as_they_say(tmp_path: Path) -> None:
    path, exif = tmp_path / "turned.jpg", Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees
    noise = np.random.default_rng(0).integers(0, 256, (9, 12, 3), dtype=np.uint8)
    Image.fromarray(noise).save(path, exif=exif)
    assert decode_in_thread(path).shape == (3, 12, 9)
    difference = decode_in_thread(path).float() - decode(path).float()
    assert difference.abs().max() <= 2  # two builds of a decoder may round differently
