from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from batchformer.lab.data.transforms.base import normalise
from batchformer.lab.data.transforms.erase import Cutout, cutout


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


def test_centres_are_uniform_over_the_image(numbers: Callable[..., Tensor]) -> None:
    x = torch.ones(6000, 1, 4, 5, dtype=torch.uint8)
    holes = Cutout(side=2)(x, numbers(6000, 2)) == 0
    # A hole of side 2 covers its centre and the pixel before it: the last row is covered by its
    # own centres alone, any other row by those of two rows.
    share = holes.any(3).float().mean((0, 1))
    assert share.tolist() == pytest.approx([0.5, 0.5, 0.5, 0.25], abs=0.03)
    share = holes.any(2).float().mean((0, 1))
    assert share.tolist() == pytest.approx([0.4, 0.4, 0.4, 0.4, 0.2], abs=0.03)


def test_before_and_after_the_change_to_float_are_the_same(
    images: Callable[..., Tensor], numbers: Callable[..., Tensor]
) -> None:
    x, u = images(16), numbers(16, 2)
    statistics = ((0.5, 0.4, 0.3), (0.2, 0.2, 0.3))
    early = normalise(Cutout()(x, u), *statistics)
    late = normalise(Cutout()(x.float() / 255, u), *statistics)
    torch.testing.assert_close(early, late)
