"""Crop, flip, rotation and warps against torchvision."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as V

from batchformer.lab.data.transforms import geometry as warps
from batchformer.lab.data.transforms.geometry import (
    RandomCrop,
    RandomFlip,
    RandomRotation,
    crop_padded,
    warp,
)
from helpers.pixels import images, numbers


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_crop_matches_torchvision_at_every_offset(dtype: torch.dtype) -> None:
    padding = 4
    top, left = (t.flatten() for t in torch.meshgrid(*[torch.arange(9)] * 2, indexing="ij"))
    x = images(len(top), 3, 12, 17).to(dtype)
    reference = torch.stack(
        [
            V.crop(V.pad(image, [padding] * 4), int(row), int(column), 12, 17)
            for image, row, column in zip(x, top, left, strict=True)
        ]
    )
    out = crop_padded(x, top, left, padding)
    assert out.dtype == dtype
    assert torch.equal(out, reference)


def test_offsets_flips_and_angles_are_the_numbers() -> None:
    x, u = images(64), numbers(64, 2)
    top, left = (u * 5).long().unbind(1)
    assert torch.equal(RandomCrop(padding=2)(x, u), crop_padded(x, top, left, 2))
    for p in (0.0, 0.3, 1.0):
        mirrored = torch.where((u[:, 0] < p).view(-1, 1, 1, 1), V.horizontal_flip(x), x)
        assert torch.equal(RandomFlip(p)(x, u[:, :1]), mirrored)
    turned = warp(x, warps.rotate(30 * u[:, 0] - 15, *x.shape[2:]), 9)
    assert torch.equal(RandomRotation(15, fill=9)(x, u[:, :1]), turned)


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


def test_each_channel_has_its_fill() -> None:
    x = torch.full((1, 3, 2, 3), 9, dtype=torch.uint8)
    moved = warps.translate_x(torch.tensor([2.0]), 2, 3)
    out = warps.warp(x, moved, fill=(1, 2, 3))
    assert out[0, :, 0].tolist() == [[1, 1, 9], [2, 2, 9], [3, 3, 9]]
