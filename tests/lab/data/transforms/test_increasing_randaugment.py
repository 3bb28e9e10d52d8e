"""timm's RandAugment: every operation against timm's own, and how they are drawn."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from PIL import Image
from timm.data import auto_augment as reference
from torch import Tensor

from batchformer.lab.data.transforms.color import IDENTITY, OPERATIONS, apply_in_sequence
from batchformer.lab.data.transforms.increasing_randaugment import (
    CHOICES,
    MEAN_COLOUR,
    IncreasingRandAugment,
    magnitudes,
)

Maker = Callable[..., Tensor]
THEIRS = reference.rand_augment_choices("", increasing=True)


def _timm(image: Tensor, name: str, level: float) -> Tensor:
    options = {"img_mean": MEAN_COLOUR, "interpolation": Image.Resampling.NEAREST}
    op = reference.AugmentOp(name, prob=1.0, magnitude=level, hparams=options)
    picture = op(Image.fromarray(image.permute(1, 2, 0).numpy()))
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1)


def test_the_operations_are_timms() -> None:
    names = [name.removesuffix("Increasing").removesuffix("Rel").lower() for name in THEIRS]
    assert names == [name.replace("_", "") for name in CHOICES]


@pytest.mark.parametrize("negative", [False, True])
@pytest.mark.parametrize("level", [0.0, 4.3, 7.4, 7.6, 9.13, 9.99])
def test_every_operation_matches_timm(
    level: float, negative: bool, images: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference, "_randomly_negate", lambda v: -v if negative else v)
    x = images(15, 3, 33, 25).roll(1, 0)
    # Both go counter-clockwise for a positive angle; timm shifts the other way than we do.
    flipped = torch.tensor([name.startswith("translate") for name in CHOICES])
    sign = flipped ^ negative
    table = magnitudes(torch.full((15,), level, dtype=torch.float64), sign, 33, 25)
    code = torch.tensor([OPERATIONS.index(name) for name in CHOICES])
    out = apply_in_sequence(x, code[None], table.diagonal()[None], MEAN_COLOUR)
    for image, ours, name in zip(x, out, THEIRS, strict=True):
        difference = (ours.int() - _timm(image, name, level).int()).abs()
        # Pillow rounds the grey that it blends with, so that two roundings may add up; half-way
        # sources of warps may be taken from the other side.
        assert (difference > 2).any(0).float().mean() < 0.03, name


def test_the_highest_level_keeps_no_bit_and_inverts_all() -> None:
    # Pillow's newest versions refuse to posterize to 0 bits; older ones make the image black.
    level = torch.tensor(10.0, dtype=torch.float64)
    table = dict(zip(CHOICES, magnitudes(level, torch.tensor(True), 8, 8).tolist(), strict=True))
    assert (table["posterize"], table["solarize"], table["solarize_add"]) == (0, 0, 110)
    assert table["color"] == pytest.approx(0.1) and table["translate_x"] == -4


def test_levels_are_normal_and_cut_and_half_of_the_operations_are_left_out(
    numbers: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    n = 30_000
    seen: dict[str, Tensor] = {}

    def note(x: Tensor, code: Tensor, parameter: Tensor, fill: object) -> Tensor:
        seen.update(code=code, parameter=parameter)
        return x

    monkeypatch.setattr(
        "batchformer.lab.data.transforms.increasing_randaugment.apply_in_sequence", note
    )
    transform = IncreasingRandAugment()
    assert transform.draws == 8
    transform(torch.zeros(1, 3, 8, 8, dtype=torch.uint8).expand(n, -1, -1, -1), numbers(n, 8))
    assert seen["code"].shape == (2, n)
    for code, parameter in zip(seen["code"], seen["parameter"], strict=True):
        counts = code.bincount(minlength=IDENTITY + 1)
        # 15,000 and 1,000 of each are expected, with standard deviations of 87 and 31.
        assert counts[IDENTITY].item() == pytest.approx(15_000, abs=450)
        drawn = [OPERATIONS.index(name) for name in CHOICES]
        assert counts[drawn].min() > 840 and counts[drawn].max() < 1160
        assert counts[drawn].sum() + counts[IDENTITY] == n
        slope = parameter[code == OPERATIONS.index("shear_x")]
        assert (slope > 0).double().mean().item() == pytest.approx(0.5, abs=0.06)
        level = slope.abs() / 0.03
        assert level.max() <= 10 and level.median().item() == pytest.approx(9, abs=0.08)
        # A share of 2.3% lies two deviations above the mean, and is cut there.
        assert (level > 10 - 1e-9).double().mean().item() == pytest.approx(0.023, abs=0.02)
        quartiles = level.quantile(torch.tensor([0.25, 0.75], dtype=torch.float64))
        assert (quartiles[1] - quartiles[0]).item() == pytest.approx(2 * 0.6745 * 0.5, abs=0.08)
    first, second = seen["code"].double()
    assert abs(torch.corrcoef(torch.stack([first, second]))[0, 1]) < 0.03


def test_rows_by_themselves_and_the_least_number(images: Maker, numbers: Maker) -> None:
    transform = IncreasingRandAugment(p=1.0)
    x, u = images(12), numbers(12, transform.draws)
    u[0] = 0.0
    whole = transform(x, u)
    assert not torch.equal(whole, x)
    for row in range(12):
        assert torch.equal(transform(x[row : row + 1], u[row : row + 1])[0], whole[row])
    assert torch.equal(IncreasingRandAugment(p=0.0)(x, u), x)


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1 operation"):
        IncreasingRandAugment(level=11)
    with pytest.raises(ValueError, match="p is a probability"):
        IncreasingRandAugment(p=2)
