"""Each warp against torchvision's functional one, sample by sample."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as V

from batchformer.lab.data.transforms import geometry as warps
from batchformer.lab.data.transforms.geometry import warp

FILL = 128


def _noise(n: int, height: int, width: int) -> Tensor:
    """Noise shows every pixel that was taken from a wrong place."""
    g = torch.Generator().manual_seed(0)
    return torch.randint(256, (n, 3, height, width), generator=g, dtype=torch.uint8)


def _shear(image: Tensor, shear: list[float]) -> Tensor:
    degrees = [math.degrees(math.atan(s)) for s in shear]
    return V.affine(image, 0.0, [0, 0], 1.0, degrees, fill=FILL, center=[0, 0])


def _translate(image: Tensor, pixels: list[int]) -> Tensor:
    return V.affine(image, 0.0, pixels, 1.0, [0.0, 0.0], fill=FILL)


WARPS = {
    "shear_x": (warps.shear_x, lambda i, m: _shear(i, [m, 0.0]), 0.3),
    "shear_y": (warps.shear_y, lambda i, m: _shear(i, [0.0, m]), 0.3),
    "translate_x": (warps.translate_x, lambda i, m: _translate(i, [int(m), 0]), 14.9),
    "translate_y": (warps.translate_y, lambda i, m: _translate(i, [0, int(m)]), 14.9),
    "rotate": (
        warps.rotate,
        lambda i, m: V.rotate(i, m, interpolation=InterpolationMode.NEAREST, fill=FILL),
        30.0,
    ),
}


def _tie(name: str, magnitude: Tensor, height: int, width: int) -> Tensor:
    """(N, H, W): whether a source lies within 1e-3 of the middle between two pixels."""
    h = torch.arange(height).double()[:, None] + 0.5
    w = torch.arange(width).double() + 0.5
    m = magnitude.double().view(-1, 1, 1)
    if name.startswith("translate"):
        return torch.zeros(len(magnitude), height, width, dtype=torch.bool)
    if name == "shear_x":
        sources = [w + m * h]
    elif name == "shear_y":
        sources = [h + m * w]
    else:
        cos, sin = m.deg2rad().cos(), m.deg2rad().sin()
        across, down = w - width / 2, h - height / 2
        sources = [
            cos * across - sin * down + width / 2,
            sin * across + cos * down + height / 2,
        ]
    return torch.stack([(s - s.round()).abs() < 1e-3 for s in sources]).any(0)


@pytest.mark.parametrize("name", WARPS)
@pytest.mark.parametrize("size", [(32, 32), (13, 20)])
def test_warps_are_exact_away_from_ties(name: str, size: tuple[int, int]) -> None:
    ours, theirs, largest = WARPS[name]
    magnitude = torch.cat([torch.linspace(0, largest, 10), -torch.linspace(0, largest, 10)])
    x = _noise(len(magnitude), *size)
    out = warp(x, ours(magnitude, *size), FILL)
    reference = torch.stack(
        [theirs(image, m) for image, m in zip(x, magnitude.tolist(), strict=True)]
    )
    differs = (out != reference).any(1)
    tie = _tie(name, magnitude, *size)
    assert tie.float().mean() < 0.1, "too few pixels are compared"
    assert not (differs & ~tie).any()
    assert (out != x).flatten(1).any(1)[5:10].all(), "the warp did nothing"


@pytest.mark.parametrize("name", WARPS)
def test_warps_by_nothing_are_the_identity(name: str) -> None:
    x = _noise(4, 7, 5)
    assert torch.equal(warp(x, WARPS[name][0](torch.zeros(4), 7, 5), FILL), x)


def test_quarter_turn_is_exact() -> None:
    x = _noise(4, 9, 9)
    turned = warp(x, warps.rotate(torch.full((4,), 90.0), 9, 9))
    assert torch.equal(turned, x.rot90(1, (2, 3)))


def test_different_warps_in_one_batch() -> None:
    x = _noise(3, 16, 16)
    one = torch.full((1,), 0.2)
    matrices = [warps.shear_x(one, 16, 16), warps.rotate(one * 100, 16, 16)]
    matrices.append(warps.translate_y(one * 20, 16, 16))
    alone = torch.cat([warp(x[i : i + 1], m, FILL) for i, m in enumerate(matrices)])
    assert torch.equal(warp(x, torch.cat(matrices), FILL), alone)


def test_each_channel_has_its_fill() -> None:
    x = torch.full((1, 3, 2, 3), 9, dtype=torch.uint8)
    moved = warps.translate_x(torch.tensor([2.0]), 2, 3)
    out = warps.warp(x, moved, fill=(1, 2, 3))
    assert out[0, :, 0].tolist() == [[1, 1, 9], [2, 2, 9], [3, 3, 9]]
