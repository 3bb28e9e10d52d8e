from __future__ import annotations

import pytest
import torch
from torchvision.transforms.v2 import functional as V

from batchformer.lab.data.transforms.base import Normalise, normalise

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
