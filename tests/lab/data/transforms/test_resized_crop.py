from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import ks_2samp
from torch import Tensor
from torchvision.transforms import RandomResizedCrop as Reference
from torchvision.transforms.v2 import functional as V

from batchformer.lab.data.transforms.resize import (
    RandomResizedCrop,
    central_box,
    random_boxes,
)

Maker = Callable[..., Tensor]
RATIO = (3 / 4, 4 / 3)


def _one_by_one(
    u: list[float], height: int, width: int, scale: tuple[float, float], ratio: tuple[float, float]
) -> tuple[int, int, int, int]:
    """The published loop: ten attempts, then the central box."""
    for attempt in range(10):
        area = height * width * (scale[0] + (scale[1] - scale[0]) * u[attempt])
        low, high = math.log(ratio[0]), math.log(ratio[1])
        shape = math.exp(low + (high - low) * u[10 + attempt])
        w, h = round(math.sqrt(area * shape)), round(math.sqrt(area / shape))
        if 0 < w <= width and 0 < h <= height:
            return math.floor(u[20] * (height - h + 1)), math.floor(u[21] * (width - w + 1)), h, w
    shape = width / height
    w, h = width, height
    if shape < min(ratio):
        h = round(w / min(ratio))
    elif shape > max(ratio):
        w = round(h * max(ratio))
    return (height - h) // 2, (width - w) // 2, h, w


@settings(max_examples=60, deadline=None)
@given(
    height=st.integers(1, 300),
    width=st.integers(1, 300),
    low=st.floats(0.01, 1.0),
    seed=st.integers(0, 10**6),
)
def test_boxes_are_those_of_the_loop(
    height: int, width: int, low: float, seed: int, numbers: Maker
) -> None:
    u = numbers(50, 22, seed)
    boxes = random_boxes(u, height, width, (low, 1.0), RATIO)
    expected = [_one_by_one(row, height, width, (low, 1.0), RATIO) for row in u.tolist()]
    assert boxes.tolist() == [list(box) for box in expected]
    top, left, h, w = boxes.unbind(1)
    assert (top >= 0).all() and (top + h <= height).all() and (h > 0).all()
    assert (left >= 0).all() and (left + w <= width).all() and (w > 0).all()


@pytest.mark.parametrize(("height", "width", "low"), [(48, 64, 0.08), (64, 64, 0.7)])
def test_boxes_are_distributed_as_torchvisions(
    height: int, width: int, low: float, numbers: Maker
) -> None:
    torch.manual_seed(0)
    image = torch.zeros(3, height, width)
    theirs = [Reference.get_params(image, [low, 1.0], list(RATIO)) for _ in range(2000)]
    ours = random_boxes(numbers(2000, 22), height, width, (low, 1.0), RATIO)
    for column, reference in zip(ours.T, zip(*theirs, strict=True), strict=True):
        assert ks_2samp(column.numpy(), reference).pvalue > 0.001


@pytest.mark.parametrize("attempt", range(11))
def test_the_first_attempt_that_fits_counts(attempt: int) -> None:
    """Areas that shrink from one attempt to the next tell which one it was."""
    u = torch.full((1, 22), 0.5, dtype=torch.float64)
    # Shares of 2 do not fit; those that do are 0.9, 0.8, and so on.
    shares = torch.linspace(0.9, 0.1, 10, dtype=torch.float64)
    u[0, :10] = (shares / 2).where(torch.arange(10) >= attempt, 0.9999)
    _, _, h, w = random_boxes(u, 100, 100, (0.0, 2.0), (1.0, 1.0))[0].tolist()
    assert h == w
    assert h == (100 if attempt == 10 else round(100 * math.sqrt(shares[attempt])))


@pytest.mark.parametrize(
    ("height", "width", "expected"),
    [(100, 300, (0, 83, 100, 133)), (300, 100, (83, 0, 133, 100)), (80, 90, (0, 0, 80, 90))],
)
def test_central_box(height: int, width: int, expected: tuple[int, int, int, int]) -> None:
    assert central_box(height, width, RATIO) == expected
    # torchvision draws the central one when no area fits.
    image = torch.zeros(3, height, width)
    assert Reference.get_params(image, [4.0, 5.0], list(RATIO)) == expected


def test_images_are_torchvisions(images: Maker, numbers: Maker) -> None:
    x, u = images(24, 3, 40, 52), numbers(24, 22)
    out = RandomResizedCrop(32, scale=(0.2, 1.0))(x, u)
    boxes = [_one_by_one(row, 40, 52, (0.2, 1.0), RATIO) for row in u.tolist()]
    reference = torch.stack(
        [V.resized_crop(i, *b, [32, 32], antialias=True) for i, b in zip(x, boxes, strict=True)]
    )
    assert (out.int() - reference.int()).abs().max() <= 1
