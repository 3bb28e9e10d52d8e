"""Policies, magnitudes and whole transforms are those of torchvision, and of timm."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
from PIL import Image
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

Maker = Callable[..., Tensor]
SPELLED = {"AutoContrast": "autocontrast", "ShearX": "shear_x", "ShearY": "shear_y"}
SPELLED |= {"TranslateX": "translate_x", "TranslateY": "translate_y"}


def drawn_by(
    transform: AutoAugment | RandAugment | IncreasingRandAugment,
    u: Tensor,
    monkeypatch: pytest.MonkeyPatch,
) -> dict[str, Tensor]:
    """Codes and parameters of the operations that numbers (N, draws) stand for."""
    seen: dict[str, Tensor] = {}

    def note(x: Tensor, code: Tensor, parameter: Tensor, fill: object = 0) -> Tensor:
        seen.update(code=code, parameter=parameter)
        return x

    monkeypatch.setattr("batchformer.lab.data.transforms.autoaugment.apply_in_sequence", note)
    transform(torch.zeros(1, 3, 8, 8, dtype=torch.uint8).expand(len(u), -1, -1, -1), u)
    return seen


def test_the_policy_is_torchvisions() -> None:
    theirs = tv.AutoAugment(tv.AutoAugmentPolicy.CIFAR10).policies
    spelled = tuple(
        tuple((SPELLED.get(op, op.lower()), p, place or 0) for op, p, place in pair)
        for pair in theirs
    )
    assert spelled == POLICY and len(spelled) == 25


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


def test_parameters() -> None:
    """The magnitude of an enhancement is its distance from 1, which changes nothing."""
    names = ("shear_x", "rotate", "color", "brightness", "posterize")
    code = torch.tensor([OPERATIONS.index(name) for name in names])
    size = torch.tensor([0.3, 9.0, 0.9, 0.9, 4.0], dtype=torch.float64)
    out = parameters(code, size, torch.tensor([False, True, False, True, True]))
    assert out.tolist() == pytest.approx([0.3, -9.0, 1.9, 0.1, 4.0])


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
    # 1e-6 is below every probability but that of operations which never act, 0.95 above all.
    chance = torch.where(acts, 1e-6, 0.95).double()
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


def test_numbers_follow_the_policy(
    numbers: Callable[..., Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is done to 50,000 samples, by operation: as often as the policy says."""
    n = 50_000
    seen = drawn_by(AutoAugment(), numbers(n, 5), monkeypatch)
    for position in range(2):
        expected = torch.zeros(IDENTITY + 1, dtype=torch.float64)
        for pair in POLICY:
            name, p, _ = pair[position]
            expected[OPERATIONS.index(name)] += p / 25
            expected[IDENTITY] += (1 - p) / 25
        counts = torch.bincount(seen["code"][position], minlength=IDENTITY + 1)
        bound = 4.5 * (expected * (1 - expected) / n).sqrt()
        assert ((counts / n - expected).abs() <= bound).all()
        rotated = seen["code"][position] == OPERATIONS.index("translate_y")
        positive = (seen["parameter"][position][rotated] > 0).double().mean()
        assert positive.item() == pytest.approx(0.5, abs=4.5 * 0.5 / int(rotated.sum()) ** 0.5)
    # Sub-policy, chances and signs come from columns of their own.
    both = (seen["code"] != IDENTITY).double()
    pairs = sum(p1 * p2 for (_, p1, _), (_, p2, _) in POLICY) / 25
    assert both.prod(0).mean().item() == pytest.approx(pairs, abs=4.5 * 0.5 / n**0.5)


@pytest.mark.parametrize("magnitude", [0, 9, 30])
def test_every_operation_matches_torchvision(magnitude: int, images: Maker) -> None:
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


def test_choices_and_signs_are_equally_likely(
    numbers: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    n = 28_000
    transform = RandAugment(num_ops=3)
    assert transform.draws == 6
    seen = drawn_by(transform, numbers(n, 6), monkeypatch)
    assert seen["code"].shape == (3, n)
    for code, parameter in zip(seen["code"], seen["parameter"], strict=True):
        counts = torch.bincount(code, minlength=IDENTITY + 1)
        drawn = [OPERATIONS.index(name) for name in CHOICES if name != "identity"] + [IDENTITY]
        assert counts.sum() == counts[drawn].sum()
        # 2,000 expected of each, with a standard deviation of 43.
        assert counts[drawn].min() > 1800 and counts[drawn].max() < 2200
        sheared = parameter[code == OPERATIONS.index("shear_x")]
        assert sheared.abs().unique().tolist() == pytest.approx([0.09])
        assert (sheared > 0).double().mean().item() == pytest.approx(0.5, abs=0.05)
    first, second = seen["code"][:2].double()
    assert abs(torch.corrcoef(torch.stack([first, second]))[0, 1]) < 0.03


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
    level: float, negative: bool, images: Maker, monkeypatch: pytest.MonkeyPatch
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


def test_levels_are_normal_and_cut_and_half_of_the_operations_are_left_out(
    numbers: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    n = 30_000
    transform = IncreasingRandAugment()
    assert transform.draws == 8
    seen = drawn_by(transform, numbers(n, 8), monkeypatch)
    assert seen["code"].shape == (2, n)
    for code, parameter in zip(seen["code"], seen["parameter"], strict=True):
        counts = code.bincount(minlength=IDENTITY + 1)
        # 15,000 and 1,000 of each are expected, with standard deviations of 87 and 31.
        assert counts[IDENTITY].item() == pytest.approx(15_000, abs=450)
        drawn = [OPERATIONS.index(name) for name in TIMM_CHOICES]
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


def test_the_least_number_and_no_operation(images: Maker, numbers: Maker) -> None:
    x, u = images(12), numbers(12, 8)
    u[0] = 0.0
    assert not torch.equal(IncreasingRandAugment(p=1.0)(x, u), x)
    assert torch.equal(IncreasingRandAugment(p=0.0)(x, u), x)
