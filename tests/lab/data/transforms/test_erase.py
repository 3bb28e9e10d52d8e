"""Cutout by its definition; random erasing against timm, with normal, keyed noise."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from scipy import stats
from timm.data import random_erasing as reference
from torch import Tensor

from batchformer.lab.data.transforms.erase import (
    QUANTILES,
    Cutout,
    RandomErasing,
    cutout,
    erase,
    keyed_noise,
)
from helpers.pixels import numbers

CPU = torch.device("cpu")


def _by_slices(x: Tensor, row: int, column: int, side: int) -> Tensor:
    """The published definition: corners half a side from the centre, clipped to the image."""
    half = side // 2
    height, width = x.shape[-2:]
    top, bottom = max(row - half, 0), min(row + half, height)
    left, right = max(column - half, 0), min(column + half, width)
    out = x.clone()
    out[:, top:bottom, left:right] = 0
    return out


@pytest.mark.parametrize("side", [16, 6, 5])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_hole_at_every_centre(side: int, dtype: torch.dtype) -> None:
    height, width = 14, 19
    row, column = (
        t.flatten()
        for t in torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    )
    x = torch.ones(len(row), 2, height, width, dtype=dtype)
    reference = torch.stack(
        [_by_slices(i, int(r), int(c), side) for i, r, c in zip(x, row, column, strict=True)]
    )
    out = cutout(x, row, column, side)
    assert out.dtype == dtype
    assert torch.equal(out, reference)


def test_centres_are_uniform_over_the_image() -> None:
    x, u = torch.ones(64, 1, 4, 5, dtype=torch.uint8), numbers(64, 2)
    row, column = (u * torch.tensor([4, 5])).long().unbind(1)
    assert torch.equal(Cutout(side=2)(x, u), cutout(x, row, column, 2))


class Told:
    """In place of the module `random`: numbers of one row, in the order timm asks for them."""

    def __init__(self, u: list[float]) -> None:
        self.chosen, self.place = u[0], iter(u[21:23])
        pairs = zip(u[1:11], u[11:21], strict=True)
        self.shapes: Iterator[float] = (number for pair in pairs for number in pair)

    def random(self) -> float:
        return self.chosen

    def uniform(self, low: float, high: float) -> float:
        return low + (high - low) * next(self.shapes)

    def randint(self, low: int, high: int) -> int:
        return low + int(next(self.place) * (high - low + 1))


@pytest.mark.parametrize(("height", "width", "area"), [(20, 31, 1 / 3), (6, 40, 0.9)])
def test_boxes_are_timms(
    height: int, width: int, area: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    transform = RandomErasing(p=0.6, area=(0.02, area))
    n = 200
    u = numbers(n, transform.draws)
    ours = transform(torch.full((n, 2, height, width), 9.0), u)
    theirs = torch.full((n, 2, height, width), 9.0)
    op = reference.RandomErasing(0.6, max_area=area, mode="const", device="cpu")
    for row in range(n):
        monkeypatch.setattr(reference, "random", Told(u[row].tolist()))
        op(theirs[row])
    assert torch.equal(ours != 9, theirs == 0)
    erased = (theirs == 0).flatten(1).any(1)
    assert 0.4 < erased.float().mean() < 0.75
    if area == 0.9:  # where no box fits, nothing is erased
        assert erased.sum() < (u[:, 0] < 0.6).sum()


def test_noise_is_standard_normal_without_pattern() -> None:
    key = torch.tensor([0, 1, -5, 2**31 - 1, -(2**31)], dtype=torch.int32)
    noise = keyed_noise(key, (3, 64, 64), CPU).double()
    assert noise.shape == (5, 3, 64, 64) and noise.abs().max() < 4.1
    for one in noise:
        # The table has steps, far finer than what 12,288 numbers can show.
        assert stats.kstest(one.flatten().numpy(), "norm").pvalue > 1e-3
    flat = noise.flatten(1)
    # A correlation of independent numbers has a standard deviation of 0.009.
    assert torch.corrcoef(flat).triu(1).abs().max() < 0.04
    for shift in (1, 64, 64 * 64):
        together = torch.stack([flat[:, shift:].flatten(), flat[:, :-shift].flatten()])
        assert torch.corrcoef(together)[0, 1].abs() < 0.02
        squares = torch.corrcoef(together.square())[0, 1]
        assert squares.abs() < 0.02


def test_every_quantile_is_about_equally_likely() -> None:
    noise = keyed_noise(torch.arange(64, dtype=torch.int32), (64, 64), CPU)
    counts = noise.flatten().unique(return_counts=True)[1]
    assert len(counts) > 0.99 * QUANTILES
    expected = noise.numel() / QUANTILES
    chi2 = (counts - expected).square().sum().item() / expected
    assert stats.chi2.sf(chi2, QUANTILES - 1) > 1e-3


def test_boxes_are_erased_where_chosen() -> None:
    x, u = torch.randn(16, 3, 12, 12), numbers(16, RandomErasing.draws)
    changed = (RandomErasing(p=0.5)(x, u) != x).flatten(1).any(1)
    assert torch.equal(changed, u[:, 0] < 0.5) and changed.any() and not changed.all()
    pasted = erase(x, torch.tensor([[1, 2, 3, 4]] * 16), torch.arange(16, dtype=torch.int32))
    inside = pasted != x
    assert inside[:, :, 1:4, 2:6].all() and inside.sum() == 16 * 3 * 3 * 4
    with pytest.raises(TypeError, match="needs normalised images"):
        RandomErasing()(x.byte(), u)
