from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as V

from batchformer.lab.data.transforms.geometry import RandomCrop, RandomFlip, crop_padded, flip_where


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_crop_matches_torchvision_at_every_offset(
    dtype: torch.dtype, images: Callable[..., Tensor]
) -> None:
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


def test_flip_acts_on_the_chosen_alone(images: Callable[..., Tensor]) -> None:
    x = images(6)
    chosen = torch.tensor([True, False, False, True, True, False])
    out = flip_where(x, chosen)
    assert torch.equal(out[chosen], V.horizontal_flip(x[chosen]))
    assert torch.equal(out[~chosen], x[~chosen])


def test_random_crop_reaches_every_offset_and_no_other(numbers: Callable[..., Tensor]) -> None:
    """One bright pixel in the middle tells where the window was."""
    x = torch.zeros(4000, 1, 9, 9, dtype=torch.uint8)
    x[:, :, 4, 4] = 1
    out = RandomCrop(padding=2)(x, numbers(4000, 2))
    where = out.nonzero()[:, 2:]
    assert len(where) == 4000
    counts = torch.bincount((where[:, 0] - 2) * 5 + where[:, 1] - 2, minlength=25)
    assert len(counts) == 25
    # 160 expected in each of 25 cells, with a standard deviation of 12.4.
    assert counts.min() > 100
    assert counts.max() < 220


@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_random_flip_has_its_probability(p: float, numbers: Callable[..., Tensor]) -> None:
    x = torch.arange(2, dtype=torch.uint8).expand(10000, 1, 1, 2)
    out = RandomFlip(p)(x, numbers(10000, 1))
    # Four standard deviations of a binomial share.
    bound = 4 * (p * (1 - p) / 10000) ** 0.5
    assert abs(out[:, 0, 0, 0].double().mean().item() - p) <= bound
