from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from batchformer.lab.data.transforms import (
    CentreCrop,
    Compose,
    Cutout,
    RandomCrop,
    RandomFlip,
    Resize,
)


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
