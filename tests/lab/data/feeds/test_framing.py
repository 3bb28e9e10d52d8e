"""Windows are distributed as torchvision's; squares are cut and resized as asked."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor
from torchvision.transforms import v2

from batchformer.lab.data.feeds.framing import (
    Geometry,
    RandomResizedCrop,
    ResizeCentreCrop,
    ResizeWhole,
    random_window,
)
from batchformer.lab.data.transforms.resize import ATTEMPTS, random_boxes

SCALE, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)


def uniform(*shape: int, seed: int = 0) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.rand(*shape, generator=draw, dtype=torch.float64)


def image(height: int = 60, width: int = 90) -> Tensor:
    draw = torch.Generator().manual_seed(1)
    coarse = torch.rand(1, 3, 7, 9, generator=draw) * 255
    return torch.nn.functional.interpolate(coarse, (height, width))[0].to(torch.uint8)


@given(st.integers(1, 400), st.integers(1, 400), st.integers(0, 10**6))
def test_a_window_lies_inside_the_image(height: int, width: int, seed: int) -> None:
    top, left, h, w = random_window(height, width, uniform(22, seed=seed), SCALE, RATIO)
    assert top >= 0 and top + h <= height and h > 0
    assert left >= 0 and left + w <= width and w > 0


@given(st.integers(1, 400), st.integers(1, 400), st.integers(0, 10**6))
def test_the_window_is_the_batched_transforms_box(height: int, width: int, seed: int) -> None:
    u = uniform(3, 22, seed=seed)
    boxes = random_boxes(u, height, width, SCALE, RATIO)
    windows = [random_window(height, width, row, SCALE, RATIO) for row in u]
    assert boxes.tolist() == [list(window) for window in windows]


@pytest.mark.parametrize("extreme", [0.0, 1 - 2**-53])
def test_the_ends_of_the_uniform_numbers(extreme: float) -> None:
    u = torch.full((22,), extreme, dtype=torch.float64)
    top, left, h, w = random_window(50, 70, u, (0.2, 0.2), (1.0, 1.0))
    side = round(math.sqrt(0.2 * 50 * 70))
    assert (h, w) == (side, side)
    assert (top, left) == ((0, 0) if extreme == 0.0 else (50 - side, 70 - side))


def test_the_first_window_that_fits_is_taken() -> None:
    """Fed by hand: nine windows too wide for the image, then one of a quarter of its area."""
    u = torch.zeros(22, dtype=torch.float64)
    u[: ATTEMPTS - 1], u[ATTEMPTS : 2 * ATTEMPTS - 1] = 1 - 2**-53, 1 - 2**-53
    window = random_window(40, 40, u, (0.25, 1.0), (1.0, 4.0))
    assert window == (0, 0, 20, 20)


def test_the_centre_where_no_window_fits() -> None:
    tall = random_window(1000, 10, uniform(22), SCALE, RATIO)
    assert tall == ((1000 - 13) // 2, 0, 13, 10)
    wide = random_window(10, 1000, uniform(22), SCALE, RATIO)
    assert wide == (0, (1000 - 13) // 2, 10, 13)


@pytest.mark.parametrize(("height", "width"), [(375, 500), (300, 100)])
def test_windows_are_distributed_as_torchvisions(height: int, width: int) -> None:
    torch.manual_seed(0)
    draws = 1500
    blank = torch.empty(3, height, width, dtype=torch.uint8)
    get_params = v2.RandomResizedCrop.get_params
    theirs = [get_params(blank, list(SCALE), list(RATIO)) for _ in range(draws)]
    ours = [random_window(height, width, u, SCALE, RATIO) for u in uniform(draws, 22)]
    for place, name in enumerate(("top", "left", "height", "width")):
        a, b = ([window[place] for window in windows] for windows in (ours, theirs))
        assert stats.ks_2samp(a, b).pvalue > 0.01, name


@settings(deadline=None, max_examples=25)
@given(st.integers(5, 90), st.integers(5, 90), st.integers(0, 10**6))
def test_every_geometry_gives_its_square(height: int, width: int, seed: int) -> None:
    kinds: tuple[Geometry, ...] = (
        RandomResizedCrop(16),
        ResizeCentreCrop(16, shorter=20),
        ResizeWhole(16),
    )
    for geometry in kinds:
        framed = geometry(image(height, width), uniform(geometry.draws, seed=seed))
        assert framed.shape == (3, 16, 16) and framed.dtype == torch.uint8


def test_random_resized_crop_is_its_window_resized() -> None:
    u = uniform(22)
    top, left, h, w = random_window(60, 90, u, SCALE, RATIO)
    window = image()[None, :, top : top + h, left : left + w].double()
    expected = torch.nn.functional.interpolate(window, (32, 32), mode="bilinear", antialias=True)
    got = RandomResizedCrop(32)(image(), u)
    assert (got.double() - expected[0]).abs().max() <= 1.0


def test_a_window_of_the_whole_at_its_own_size_changes_nothing() -> None:
    whole = RandomResizedCrop(60, scale=(1.0, 1.0), ratio=(1.0, 1.0))
    square = image(60, 60)
    assert torch.equal(whole(square, uniform(22)), square)


def test_the_test_geometry_is_torchvisions() -> None:
    expected = v2.Compose([v2.Resize(32, antialias=True), v2.CenterCrop(28)])
    for height, width in ((60, 90), (90, 61), (20, 25)):
        got = ResizeCentreCrop(28, shorter=32)(image(height, width), uniform(0))
        assert torch.equal(got, expected(image(height, width)))


def test_the_whole_image_is_resized_as_torchvision_does() -> None:
    whole = ResizeWhole(28)
    assert whole.draws == 0
    expected = v2.Resize((28, 28), antialias=True)
    for height, width in ((60, 90), (90, 61), (20, 25), (28, 28), (3, 200)):
        got = whole(image(height, width), uniform(0))
        assert torch.equal(got, expected(image(height, width)))


def test_windows_of_a_larger_part_of_the_image() -> None:
    """The crop of domain generalization: no less than 0.7 of the area, but for whole pixels."""
    large = (0.7, 1.0)
    windows = [random_window(200, 220, u, large, RATIO) for u in uniform(500, 22)]
    parts = torch.tensor([h * w / (200 * 220) for _, _, h, w in windows])
    assert parts.min() > 0.69 and parts.max() <= 1 and parts.std() > 0.05
    u = uniform(22)
    top, left, h, w = random_window(60, 90, u, large, RATIO)
    cut = image()[:, top : top + h, left : left + w]
    got = RandomResizedCrop(32, scale=large)(image(), u)
    assert torch.equal(got, v2.Resize((32, 32), antialias=True)(cut))


def test_interpolations_differ() -> None:
    u = uniform(22)
    a, b = RandomResizedCrop(32)(image(), u), RandomResizedCrop(32, interpolation="bicubic")
    assert not torch.equal(a, b(image(), u))


def test_a_square_that_does_not_fit() -> None:
    with pytest.raises(ValueError, match=r"side 224 does not fit .* shorter side is 200"):
        ResizeCentreCrop(224, shorter=200)
