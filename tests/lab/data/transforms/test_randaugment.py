from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms import RandAugment as Reference
from torchvision.transforms.autoaugment import _apply_op

from batchformer.lab.data.transforms.autoaugment import CHOICES, RandAugment, rand_augment
from batchformer.lab.data.transforms.color import IDENTITY, OPERATIONS

Maker = Callable[..., Tensor]


@pytest.mark.parametrize(("magnitude", "bins"), [(9, 31), (30, 31), (0, 31), (5, 10)])
def test_every_operation_matches_torchvision(magnitude: int, bins: int, images: Maker) -> None:
    space = Reference()._augmentation_space(bins, (32, 24))
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


def test_operations_follow_each_other(images: Maker) -> None:
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
