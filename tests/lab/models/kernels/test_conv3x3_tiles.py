"""How a convolution is cut."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

from batchformer.lab.models.kernels.available import CONV_CHANNELS
from batchformer.lab.models.kernels.conv3x3 import (
    FORWARD,
    INPUT_GRADIENT,
    WEIGHT_GRADIENT,
    Tile,
)


def test_pairs_need_an_even_width() -> None:
    tile = Tile(64, 4, 2, 4, 1)
    assert tile.fitted(8) == tile
    assert tile.fitted(7) == tile._replace(group=1)
    assert Tile(64, 1, 1, 4, 1).fitted(7).group == 1


def test_steps_cover_the_nine_taps() -> None:
    assert Tile(64, 1, 1, 4, 1).steps() == 9
    assert Tile(64, 4, 2, 4, 1).steps() == 3


def test_every_number_of_channels_has_tiles() -> None:
    for table in (FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT):
        assert set(table) == set(CONV_CHANNELS)
