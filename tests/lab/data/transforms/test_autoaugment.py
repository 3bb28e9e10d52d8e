"""Policies, magnitudes and whole transforms are those of torchvision."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torchvision import transforms as tv
from torchvision.transforms import InterpolationMode
from torchvision.transforms.autoaugment import _apply_op

from batchformer.lab.data.transforms.autoaugment import (
    CHOICES,
    POLICIES,
    AutoAugment,
    PolicyName,
    RandAugment,
    auto_augment,
    has_sign,
    magnitudes,
    parameters,
    rand_augment,
)
from batchformer.lab.data.transforms.color import IDENTITY, OPERATIONS

Maker = Callable[..., Tensor]
SPELLED = {"AutoContrast": "autocontrast", "ShearX": "shear_x", "ShearY": "shear_y"}
SPELLED |= {"TranslateX": "translate_x", "TranslateY": "translate_y"}


@pytest.mark.parametrize("name", POLICIES)
def test_policies_are_torchvisions(name: PolicyName) -> None:
    theirs = tv.AutoAugment(tv.AutoAugmentPolicy(name)).policies
    spelled = tuple(
        tuple((SPELLED.get(op, op.lower()), p, place or 0) for op, p, place in pair)
        for pair in theirs
    )
    assert POLICIES[name] == spelled and len(spelled) == 25


SPACE = {**tv.AutoAugment()._augmentation_space(10, (32, 48))}
NAMES = {name: SPELLED.get(name, name.lower()) for name in SPACE}


@pytest.mark.parametrize("theirs", SPACE)
@pytest.mark.parametrize("bins", [10, 31])
def test_magnitudes_and_signs_are_torchvisions(theirs: str, bins: int) -> None:
    space = tv.AutoAugment()._augmentation_space(bins, (32, 48))
    size, signed = space[theirs]
    ours = magnitudes(NAMES[theirs], 32, 48, bins)
    assert torch.equal(ours, size.double().expand(bins))
    assert has_sign(NAMES[theirs]) == signed
    if theirs != "Invert":
        other, also_signed = tv.RandAugment()._augmentation_space(bins, (32, 48))[theirs]
        assert torch.equal(other, size) and also_signed == signed


def test_parameters() -> None:
    size = torch.tensor([0.3, 0.3, 0.9, 0.9, 4.0], dtype=torch.float64)
    negative = torch.tensor([False, True, False, True, True])
    signed = torch.tensor([True, True, True, True, False])
    factor = torch.tensor([False, False, True, True, False])
    out = parameters(size, negative, signed, factor)
    assert out.tolist() == pytest.approx([0.3, -0.3, 1.9, 0.1, 4.0])


FILL = 128


def _images(n: int, size: int = 32) -> Tensor:
    """Smooth coloured images with some noise."""
    g = torch.Generator().manual_seed(0)
    coarse = torch.rand(n, 3, 4, 4, generator=g) * 200
    smooth = torch.nn.functional.interpolate(coarse, size=(size, size), mode="bilinear")
    return (smooth + torch.rand(n, 3, size, size, generator=g) * 50).to(torch.uint8)


def _one_by_one(
    x: Tensor,
    policy: PolicyName,
    sub_policy: Tensor,
    chance: Tensor,
    negative: Tensor,
    monkeypatch: pytest.MonkeyPatch,
) -> Tensor:
    """torchvision's AutoAugment on each image with the given draws."""
    reference = tv.AutoAugment(tv.AutoAugmentPolicy(policy), fill=[float(FILL)])
    out = []
    for i, image in enumerate(x):
        parameters = (int(sub_policy[i]), chance[:, i], (~negative[:, i]).int())
        monkeypatch.setattr(reference, "get_params", lambda _, p=parameters: p)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            out.append(reference(image))
    return torch.stack(out)


@pytest.mark.parametrize("policy", POLICIES)
def test_whole_policy_matches_torchvision(
    policy: PolicyName, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every sub-policy, with both, either and neither operation, and both signs."""
    n = 25 * 16
    sub_policy = torch.arange(n) // 16
    case = torch.arange(n) % 16
    acts = torch.stack([case % 2, case // 2 % 2]).bool()
    # 1e-6 is below every probability but that of operations which never act, and 2 above all.
    chance = torch.where(acts, 1e-6, 2.0)
    negative = torch.stack([case // 4 % 2, case // 8 % 2]).bool()
    x = _images(n)
    before = x.clone()
    out = auto_augment(x, sub_policy, chance, negative, policy, FILL)
    assert torch.equal(x, before), "the input was changed"
    theirs = _one_by_one(x, policy, sub_policy, chance, negative, monkeypatch)
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
    seen: dict[str, Tensor] = {}

    def note(x: Tensor, code: Tensor, parameter: Tensor, fill: int) -> Tensor:
        seen.update(code=code, parameter=parameter)
        return x

    module = "batchformer.lab.data.transforms.autoaugment.apply_in_sequence"
    monkeypatch.setattr(module, note)
    AutoAugment()(torch.zeros(n, 3, 32, 32, dtype=torch.uint8).expand(n, -1, -1, -1), numbers(n, 5))
    for position in range(2):
        expected = torch.zeros(IDENTITY + 1, dtype=torch.float64)
        for pair in POLICIES["cifar10"]:
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
    pairs = sum(p1 * p2 for (_, p1, _), (_, p2, _) in POLICIES["cifar10"]) / 25
    assert both.prod(0).mean().item() == pytest.approx(pairs, abs=4.5 * 0.5 / n**0.5)


def test_unknown_policy_is_refused() -> None:
    with pytest.raises(ValueError, match="one of cifar10, imagenet, got 'svhn'"):
        AutoAugment("svhn")  # type: ignore[arg-type]


@pytest.mark.parametrize(("magnitude", "bins"), [(9, 31), (30, 31), (0, 31), (5, 10)])
def test_every_operation_matches_torchvision(magnitude: int, bins: int, images: Maker) -> None:
    space = tv.RandAugment()._augmentation_space(bins, (32, 24))
    assert [name.lower() for name in space] == [name.replace("_", "") for name in CHOICES]
    choice, negative = torch.arange(14).repeat(2), torch.arange(28) >= 14
    x = images(28, 3, 32, 24).roll(1, 0)
    out = rand_augment(x, choice[None], negative[None], magnitude, bins)
    for i, image in enumerate(x):
        name, (sizes, signed) = list(space.items())[int(choice[i])]
        m = float(sizes[magnitude]) if sizes.ndim else 0.0
        m = -m if signed and negative[i] else m
        theirs = _apply_op(image, name, m, InterpolationMode.NEAREST, None)
        difference = (out[i].int() - theirs.int()).abs()
        # Half-way sources of warps may be taken from the other side.
        assert (difference > 1).any(0).float().mean() < 0.02


def test_operations_of_randaugment_follow_each_other(images: Maker) -> None:
    x = images(10)
    choice = torch.tensor([[11] * 10, [6] * 10, [13] * 10])
    negative = torch.tensor([[True] * 10, [False] * 10, [True] * 10])
    expected = x
    for row, sign in zip(choice, negative, strict=True):
        expected = rand_augment(expected, row[None], sign[None])
    assert torch.equal(rand_augment(x, choice, negative), expected)


def test_choices_and_signs_are_equally_likely(
    numbers: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    n = 28_000
    seen: dict[str, Tensor] = {}

    def note(x: Tensor, code: Tensor, parameter: Tensor, fill: int) -> Tensor:
        seen.update(code=code, parameter=parameter)
        return x

    monkeypatch.setattr("batchformer.lab.data.transforms.autoaugment.apply_in_sequence", note)
    transform = RandAugment(num_ops=3)
    assert transform.draws == 6
    transform(torch.zeros(1, 3, 8, 8, dtype=torch.uint8).expand(n, -1, -1, -1), numbers(n, 6))
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


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(ValueError, match=r"one of the 31 bins 0\.\.30, got 31"):
        RandAugment(magnitude=31)
    with pytest.raises(ValueError, match="at least 1 operation and 2 bins"):
        RandAugment(num_ops=0)
