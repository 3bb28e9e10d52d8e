"""Policies, magnitudes and whole transforms are those of torchvision, and of timm."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.stats import norm
from timm.data import auto_augment as timm
from torch import Tensor
from torchvision import transforms as tv
from torchvision.transforms import InterpolationMode
from torchvision.transforms.autoaugment import _apply_op

from batchformer.lab.data.transforms.autoaugment import (
    CHOICES,
    MEAN_COLOUR,
    POLICY,
    TIMM_CHOICES,
    AutoAugment,
    IncreasingRandAugment,
    RandAugment,
    magnitudes,
    parameters,
    timm_magnitudes,
)
from batchformer.lab.data.transforms.color import IDENTITY, OPERATIONS, apply_in_sequence
from helpers.pixels import images, numbers

SPELLED = {"AutoContrast": "autocontrast", "ShearX": "shear_x", "ShearY": "shear_y"}
SPELLED |= {"TranslateX": "translate_x", "TranslateY": "translate_y"}


SPACE = {**tv.AutoAugment()._augmentation_space(10, (32, 48))}
NAMES = {name: SPELLED.get(name, name.lower()) for name in SPACE}


@pytest.mark.parametrize("theirs", SPACE)
@pytest.mark.parametrize("bins", [10, 31])
def test_magnitudes_and_signs_are_torchvisions(theirs: str, bins: int) -> None:
    space = tv.AutoAugment()._augmentation_space(bins, (32, 48))
    size, signed = space[theirs]
    ours = magnitudes(NAMES[theirs], 32, 48, bins)
    assert torch.equal(ours, size.double().expand(bins))
    code = torch.tensor(OPERATIONS.index(NAMES[theirs]))
    plus, minus = (parameters(code, torch.tensor(0.25), torch.tensor(b)) for b in (False, True))
    assert plus - minus == (0.5 if signed else 0)
    if theirs != "Invert":
        other, also_signed = tv.RandAugment()._augmentation_space(bins, (32, 48))[theirs]
        assert torch.equal(other, size) and also_signed == signed


FILL = 128


def _images(n: int, size: int = 32) -> Tensor:
    """Smooth coloured images with some noise."""
    g = torch.Generator().manual_seed(0)
    coarse = torch.rand(n, 3, 4, 4, generator=g) * 200
    smooth = torch.nn.functional.interpolate(coarse, size=(size, size), mode="bilinear")
    return (smooth + torch.rand(n, 3, size, size, generator=g) * 50).to(torch.uint8)


def _one_by_one(
    x: Tensor,
    sub_policy: Tensor,
    chance: Tensor,
    negative: Tensor,
    monkeypatch: pytest.MonkeyPatch,
) -> Tensor:
    """torchvision's AutoAugment on each image with the given draws."""
    reference = tv.AutoAugment(tv.AutoAugmentPolicy.CIFAR10, fill=[float(FILL)])
    out = []
    for i, image in enumerate(x):
        parameters = (int(sub_policy[i]), chance[:, i], (~negative[:, i]).int())
        monkeypatch.setattr(reference, "get_params", lambda _, p=parameters: p)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            out.append(reference(image))
    return torch.stack(out)


def test_whole_policy_matches_torchvision(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every sub-policy, with both, either and neither operation, and both signs."""
    n = 25 * 16
    sub_policy = torch.arange(n) // 16
    case = torch.arange(n) % 16
    acts = torch.stack([case % 2, case // 2 % 2]).bool()
    probability = torch.tensor([[p for _, p, _ in pair] for pair in POLICY], dtype=torch.float64)
    chance = probability[sub_policy].T - torch.where(acts, 1e-6, -1e-6)
    negative = torch.stack([case // 4 % 2, case // 8 % 2]).bool()
    x = _images(n)
    before = x.clone()
    u = torch.stack([(sub_policy + 0.5) / 25, *chance, *torch.where(negative, 0.1, 0.9)], 1)
    out = AutoAugment()(x, u.double())
    assert torch.equal(x, before), "the input was changed"
    theirs = _one_by_one(x, sub_policy, chance, negative, monkeypatch)
    difference = (out.int() - theirs.int()).abs().flatten(1)
    # Where a first operation differs by one grey level, a second one may enlarge it (equalize) or
    # take the other side of a threshold (solarize): those are few pixels.
    single = ~acts.all(0)
    assert difference[single].max() <= 1
    assert (difference > 1).float().mean() < 0.02
    assert (out != x).flatten(1).any(1)[acts.any(0)].float().mean() > 0.85


@pytest.mark.parametrize("magnitude", [0, 9, 30])
def test_every_operation_matches_torchvision(magnitude: int) -> None:
    space = tv.RandAugment()._augmentation_space(31, (32, 24))
    assert [name.lower() for name in space] == [name.replace("_", "") for name in CHOICES]
    choice, negative = torch.arange(14).repeat(2), torch.arange(28) >= 14
    x = images(28, 3, 32, 24).roll(1, 0)
    u = torch.stack([(choice + 0.5) / 14, torch.where(negative, 0.1, 0.9)], 1).double()
    out = RandAugment(1, magnitude)(x, u)
    for i, image in enumerate(x):
        name, (sizes, signed) = list(space.items())[int(choice[i])]
        m = float(sizes[magnitude]) if sizes.ndim else 0.0
        m = -m if signed and negative[i] else m
        theirs = _apply_op(image, name, m, InterpolationMode.NEAREST, None)
        difference = (out[i].int() - theirs.int()).abs()
        # Half-way sources of warps may be taken from the other side.
        assert (difference > 1).any(0).float().mean() < 0.02


@pytest.mark.parametrize(
    "kind", [partial(RandAugment, magnitude=20), partial(IncreasingRandAugment, p=1.0)]
)
def test_operations_follow_each_other_with_columns_of_their_own(
    kind: Callable[..., RandAugment | IncreasingRandAugment],
) -> None:
    one, three = kind(num_ops=1), kind(num_ops=3)
    x, u = images(40), numbers(40, three.draws)
    expected = x
    for k in range(3):
        expected = one(expected, u[:, k::3])
    assert three.draws == 3 * one.draws and torch.equal(three(x, u), expected)


# timm's RandAugment.

THEIRS = timm.rand_augment_choices("", increasing=True)


def _timm(image: Tensor, name: str, level: float) -> Tensor:
    options = {"img_mean": MEAN_COLOUR, "interpolation": Image.Resampling.NEAREST}
    op = timm.AugmentOp(name, prob=1.0, magnitude=level, hparams=options)
    picture = op(Image.fromarray(image.permute(1, 2, 0).numpy()))
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1)


def test_the_operations_are_timms() -> None:
    names = [name.removesuffix("Increasing").removesuffix("Rel").lower() for name in THEIRS]
    assert names == [name.replace("_", "") for name in TIMM_CHOICES]


@pytest.mark.parametrize("negative", [False, True])
@pytest.mark.parametrize("level", [0.0, 4.3, 7.6, 9.99])
def test_every_operation_matches_timm(
    level: float, negative: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timm, "_randomly_negate", lambda v: -v if negative else v)
    x = images(15, 3, 33, 25).roll(1, 0)
    # Both go counter-clockwise for a positive angle; timm shifts the other way than we do.
    flipped = torch.tensor([name.startswith("translate") for name in TIMM_CHOICES])
    sign = flipped ^ negative
    table = timm_magnitudes(torch.full((15,), level, dtype=torch.float64), sign, 33, 25)
    code = torch.tensor([OPERATIONS.index(name) for name in TIMM_CHOICES])
    out = apply_in_sequence(x, code[None], table.diagonal()[None], MEAN_COLOUR)
    for image, ours, name in zip(x, out, THEIRS, strict=True):
        difference = (ours.int() - _timm(image, name, level).int()).abs()
        # Pillow rounds the grey that it blends with, so that two roundings may add up; half-way
        # sources of warps may be taken from the other side.
        assert (difference > 2).any(0).float().mean() < 0.03, name


def test_the_highest_level_keeps_no_bit_and_inverts_all() -> None:
    # Pillow's newest versions refuse to posterize to 0 bits; older ones make the image black.
    level = torch.tensor(10.0, dtype=torch.float64)
    table = dict(
        zip(TIMM_CHOICES, timm_magnitudes(level, torch.tensor(True), 8, 8).tolist(), strict=True)
    )
    assert (table["posterize"], table["solarize"], table["solarize_add"]) == (0, 0, 110)
    assert table["color"] == pytest.approx(0.1) and table["translate_x"] == -4


def test_numbers_are_choice_chance_level_and_sign(monkeypatch: pytest.MonkeyPatch) -> None:
    """Levels are normal and cut at 10; half of the operations are left out."""
    seen: list[Tensor] = []
    monkeypatch.setattr(
        "batchformer.lab.data.transforms.autoaugment.apply_in_sequence",
        lambda x, code, parameter, fill: seen.extend((code[0], parameter[0])),
    )
    u = numbers(3000, 4)
    IncreasingRandAugment(num_ops=1)(torch.zeros(3000, 3, 2, 2, dtype=torch.uint8), u)
    code, parameter = seen
    names = [TIMM_CHOICES[int(15 * number)] for number in u[:, 0]]
    expected = [OPERATIONS.index(name) for name in names]
    assert torch.equal(code, torch.tensor(expected).where(u[:, 1] < 0.5, IDENTITY))
    level = norm.ppf(u[:, 2], loc=9, scale=0.5).clip(max=10)
    slope = np.where(u[:, 3] < 0.5, -0.03, 0.03) * level
    sheared = [row for row, name in enumerate(names) if name == "shear_x"]
    assert len(sheared) > 100 and (level == 10).any()
    np.testing.assert_allclose(parameter[sheared], slope[sheared])


def test_the_least_number_and_no_operation() -> None:
    x, u = images(12), numbers(12, 8)
    u[0] = 0.0
    assert not torch.equal(IncreasingRandAugment(p=1.0)(x, u), x)
    assert torch.equal(IncreasingRandAugment(p=0.0)(x, u), x)
