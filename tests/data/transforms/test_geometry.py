from __future__ import annotations

import pytest
import torch
from torchvision.transforms.v2 import functional as V

from batchformer.data.transforms.geometry import RandomCrop, RandomFlip, crop_padded, flip_where


def _images(n: int, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
    g = torch.Generator().manual_seed(0)
    return torch.randint(256, (n, 3, 12, 17), generator=g).to(dtype)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_crop_matches_torchvision_at_every_offset(dtype: torch.dtype) -> None:
    padding = 4
    top, left = (t.flatten() for t in torch.meshgrid(*[torch.arange(9)] * 2, indexing="ij"))
    x = _images(len(top), dtype)
    reference = torch.stack(
        [
            V.crop(V.pad(image, [padding] * 4), int(row), int(column), 12, 17)
            for image, row, column in zip(x, top, left, strict=True)
        ]
    )
    out = crop_padded(x, top, left, padding)
    assert out.dtype == dtype
    assert torch.equal(out, reference)


def test_flip_acts_on_the_chosen_alone() -> None:
    x = _images(6)
    chosen = torch.tensor([True, False, False, True, True, False])
    out = flip_where(x, chosen)
    assert torch.equal(out[chosen], V.horizontal_flip(x[chosen]))
    assert torch.equal(out[~chosen], x[~chosen])


def test_random_crop_reaches_every_offset_and_no_other() -> None:
    """One bright pixel in the middle tells where the window was."""
    x = torch.zeros(4000, 1, 9, 9, dtype=torch.uint8)
    x[:, :, 4, 4] = 1
    out = RandomCrop(padding=2)(x, torch.Generator().manual_seed(0))
    where = out.nonzero()[:, 2:]
    assert len(where) == 4000
    counts = torch.bincount((where[:, 0] - 2) * 5 + where[:, 1] - 2, minlength=25)
    assert len(counts) == 25
    # 160 expected in each of 25 cells, with a standard deviation of 12.4.
    assert counts.min() > 100
    assert counts.max() < 220


def test_random_flip_has_its_probability() -> None:
    x = torch.arange(2, dtype=torch.uint8).expand(10000, 1, 1, 2)
    out = RandomFlip(p=0.3)(x, torch.Generator().manual_seed(0))
    assert out[:, 0, 0, 0].float().mean().item() == pytest.approx(0.3, abs=0.02)


@pytest.mark.parametrize("transform", [RandomCrop(), RandomFlip()])
def test_one_seed_gives_one_result(transform: RandomCrop | RandomFlip) -> None:
    x = _images(32)
    first, again, other = (transform(x, torch.Generator().manual_seed(s)) for s in (7, 7, 8))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
