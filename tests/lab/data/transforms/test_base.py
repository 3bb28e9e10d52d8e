"""Numbers become parameters, transforms are composed, images are normalised."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torchvision.transforms.v2 import functional as V

from batchformer.lab.data.transforms import (
    CentreCrop,
    Compose,
    Cutout,
    RandomCrop,
    RandomFlip,
    Resize,
)
from batchformer.lab.data.transforms.base import Normalise, normalise, uniform_float, uniform_int

LARGEST = 1 - 2.0**-53  # the largest number that torch.rand gives in float64


@given(st.integers(1, 10**9))
def test_the_largest_number_gives_the_last_place(count: int) -> None:
    assert uniform_int(torch.tensor([0.0, LARGEST], dtype=torch.float64), count).tolist() == [
        0,
        count - 1,
    ]


def test_whole_numbers_are_evenly_spread(numbers: Callable[..., Tensor]) -> None:
    counts = torch.bincount(uniform_int(numbers(10_000, 1)[:, 0], 10))
    # 1,000 expected of each of ten, with a standard deviation of 30.
    assert len(counts) == 10 and counts.min() > 880 and counts.max() < 1120


def test_counts_may_differ_by_sample() -> None:
    u = torch.full((3,), 0.5, dtype=torch.float64)
    assert uniform_int(u, torch.tensor([1, 2, 7])).tolist() == [0, 1, 3]


@given(st.floats(-100, 100), st.floats(0, 100))
def test_between_keeps_its_bounds(low: float, extent: float) -> None:
    out = uniform_float(torch.tensor([0.0, 0.5], dtype=torch.float64), low, low + extent)
    assert out.tolist() == pytest.approx([low, low + extent / 2])


def test_each_transform_is_given_its_own_columns(
    images: Callable[..., Tensor], numbers: Callable[..., Tensor]
) -> None:
    composed = Compose((RandomCrop(), RandomFlip(), CentreCrop(20), Cutout()))
    assert composed.draws == 5
    x, u = images(16), numbers(16, 5)
    by_hand = RandomFlip()(RandomCrop()(x, u[:, :2]), u[:, 2:3])
    by_hand = Cutout()(by_hand[..., 6:26, 6:26], u[:, 3:])
    assert torch.equal(composed(x, u), by_hand)


def test_numbers_may_be_left_out_where_nothing_is_random(images: Callable[..., Tensor]) -> None:
    x = images(4)
    fixed = Compose((Resize(20), CentreCrop(16)))
    assert fixed.draws == 0
    assert torch.equal(fixed(x), CentreCrop(16)(Resize(20)(x)))
    with pytest.raises(ValueError, match=r"Compose needs u of shape \(4, 1\)"):
        Compose((RandomFlip(),))(x)


MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)


def test_matches_torchvision_from_uint8_and_float() -> None:
    g = torch.Generator().manual_seed(0)
    x = torch.randint(256, (5, 3, 8, 9), generator=g, dtype=torch.uint8)
    scaled = V.to_dtype(x, torch.float32, scale=True)
    reference = V.normalize(scaled, list(MEAN), list(STD))
    torch.testing.assert_close(normalise(x, MEAN, STD), reference)
    torch.testing.assert_close(normalise(scaled, MEAN, STD), reference)


def test_keeps_the_floating_point_type() -> None:
    assert normalise(torch.zeros(1, 3, 2, 2, dtype=torch.float64), MEAN, STD).dtype == torch.float64


def test_needs_no_numbers() -> None:
    x = torch.zeros(1, 3, 2, 2, dtype=torch.uint8)
    assert Normalise(MEAN, STD).draws == 0
    assert torch.equal(Normalise(MEAN, STD)(x), normalise(x, MEAN, STD))


def test_wrong_channels_are_named() -> None:
    with pytest.raises(ValueError, match="x has 1 channels"):
        normalise(torch.zeros(1, 1, 2, 2), MEAN, STD)
