"""Windows are distributed as torchvision's; squares are cut and resized as asked."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats
from torch import Tensor
from torchvision.transforms import v2

from batchformer.lab.data.feeds.framing import (
    RandomResizedCrop,
    ResizeCentreCrop,
    ResizeWhole,
    random_window,
)
from batchformer.lab.data.transforms.resize import ATTEMPTS

SCALE, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)


def uniform(*shape: int, seed: int = 0) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.rand(*shape, generator=draw, dtype=torch.float64)


def image(height: int = 60, width: int = 90) -> Tensor:
    draw = torch.Generator().manual_seed(1)
    coarse = torch.rand(1, 3, 7, 9, generator=draw) * 255
    return torch.nn.functional.interpolate(coarse, (height, width))[0].to(torch.uint8)


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


def test_a_random_resized_crop_is_its_window_resized() -> None:
    u = uniform(22)
    for scale in (SCALE, (0.7, 1.0)):
        top, left, h, w = random_window(60, 90, u, scale, RATIO)
        cut = image()[:, top : top + h, left : left + w]
        got = RandomResizedCrop(32, scale=scale)(image(), u)
        assert torch.equal(got, v2.Resize((32, 32), antialias=True)(cut))
        assert not torch.equal(RandomResizedCrop(32, scale, RATIO, "bicubic")(image(), u), got)


def test_the_geometries_of_tests_are_torchvisions() -> None:
    def centre(rule: v2.InterpolationMode) -> v2.Compose:
        return v2.Compose([v2.Resize(32, rule, antialias=True), v2.CenterCrop(28)])

    bilinear, bicubic = map(centre, (v2.InterpolationMode.BILINEAR, v2.InterpolationMode.BICUBIC))
    whole = v2.Resize((28, 28), antialias=True)
    for height, width in ((60, 90), (90, 61), (20, 25), (28, 28), (3, 200)):
        x = image(height, width)
        assert torch.equal(ResizeCentreCrop(28, shorter=32)(x, uniform(0)), bilinear(x))
        fine = ResizeCentreCrop(28, shorter=32, interpolation="bicubic")
        assert torch.equal(fine(x, uniform(0)), bicubic(x))
        assert torch.equal(ResizeWhole(28)(x, uniform(0)), whole(x))
    with pytest.raises(ValueError, match=r"side 224 does not fit .* shorter side is 200"):
        ResizeCentreCrop(224, shorter=200)
