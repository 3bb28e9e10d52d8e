from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torchvision.transforms import AutoAugment as Reference
from torchvision.transforms import AutoAugmentPolicy

from batchformer.lab.data.transforms.autoaugment import (
    POLICIES,
    AutoAugment,
    PolicyName,
    auto_augment,
)
from batchformer.lab.data.transforms.color import IDENTITY, OPERATIONS

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
    reference = Reference(AutoAugmentPolicy(policy), fill=[float(FILL)])
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
