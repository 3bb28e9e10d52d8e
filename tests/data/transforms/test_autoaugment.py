from __future__ import annotations

import warnings

import pytest
import torch
from torchvision.transforms import AutoAugment as Reference
from torchvision.transforms import AutoAugmentPolicy

from batchformer.data.transforms.autoaugment import (
    BINS,
    CIFAR10_POLICY,
    OPERATIONS,
    AutoAugment,
    Draws,
    auto_augment,
    draw,
    magnitudes,
)

FILL = 128


def _images(n: int, size: int = 32) -> torch.Tensor:
    """Smooth coloured images with some noise."""
    g = torch.Generator().manual_seed(0)
    coarse = torch.rand(n, 3, 4, 4, generator=g) * 200
    smooth = torch.nn.functional.interpolate(coarse, size=(size, size), mode="bilinear")
    return (smooth + torch.rand(n, 3, size, size, generator=g) * 50).to(torch.uint8)


def _torchvision_name(name: str) -> str:
    title = "".join(part.capitalize() for part in name.split("_"))
    return {"Autocontrast": "AutoContrast"}.get(title, title)


def _reference() -> Reference:
    return Reference(AutoAugmentPolicy.CIFAR10, fill=[float(FILL)])


def test_policy_is_torchvisions() -> None:
    theirs = [
        tuple((name, p, magnitude_bin or 0) for name, p, magnitude_bin in pair)
        for pair in _reference().policies
    ]
    ours = [tuple((_torchvision_name(n), p, b) for n, p, b in pair) for pair in CIFAR10_POLICY]
    assert ours == theirs


@pytest.mark.parametrize("operation", OPERATIONS)
def test_magnitudes_are_torchvisions(operation: str) -> None:
    space = _reference()._augmentation_space(BINS, (32, 48))
    theirs, _ = space[_torchvision_name(operation)]
    torch.testing.assert_close(magnitudes(operation, 32, 48), theirs.float().expand(BINS))


def _one_by_one(x: torch.Tensor, draws: Draws, monkeypatch: pytest.MonkeyPatch) -> torch.Tensor:
    """torchvision's AutoAugment on each image with the given draws."""
    reference, out = _reference(), []
    for i, image in enumerate(x):
        parameters = (int(draws.sub_policy[i]), draws.chance[:, i], draws.positive[:, i].int())
        monkeypatch.setattr(reference, "get_params", lambda _, p=parameters: p)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            out.append(reference(image))
    return torch.stack(out)


def test_whole_policy_matches_torchvision(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every sub-policy, with both, either and neither operation, and both signs."""
    n = len(CIFAR10_POLICY) * 16
    sub_policy = torch.arange(n) // 16
    case = torch.arange(n) % 16
    acts = torch.stack([case % 2, case // 2 % 2]).bool()
    # 1e-6 is below every probability but that of the operation which never acts.
    draws = Draws(
        sub_policy,
        torch.where(acts, 1e-6, 1.0),
        torch.stack([case // 4 % 2, case // 8 % 2]).bool(),
    )
    x = _images(n)
    before = x.clone()
    out = auto_augment(x, draws, FILL)
    assert torch.equal(x, before), "the input was changed"
    difference = (out.int() - _one_by_one(x, draws, monkeypatch).int()).abs().flatten(1)
    # Where a first operation differs by one grey level, a second one may enlarge it (equalize) or
    # take the other side of a threshold (solarize): those are few pixels.
    single = ~acts.all(0)
    assert difference[single].max() <= 1
    assert (difference > 1).float().mean() < 0.02
    assert (out != x).flatten(1).any(1)[acts.any(0)].float().mean() > 0.9


def test_draws_follow_the_policy() -> None:
    n = 50_000
    draws = draw(n, torch.Generator().manual_seed(0))
    assert draws.chance.shape == draws.positive.shape == (2, n)
    counts = torch.bincount(draws.sub_policy, minlength=25)
    assert len(counts) == 25
    # 2,000 expected of each, with a standard deviation of 44.
    assert counts.min() > 1800
    assert counts.max() < 2200
    assert draws.positive.float().mean(1).tolist() == pytest.approx([0.5, 0.5], abs=0.01)
    assert draws.chance.mean(1).tolist() == pytest.approx([0.5, 0.5], abs=0.01)
    for a, b in ((draws.chance[0], draws.chance[1]), (draws.positive[0], draws.positive[1])):
        assert abs(torch.corrcoef(torch.stack([a.float(), b.float()]))[0, 1]) < 0.02


def test_samples_do_not_meet() -> None:
    x = _images(64)
    draws = draw(64, torch.Generator().manual_seed(3))
    alone = [
        auto_augment(x[i : i + 1], Draws(*(d[..., i : i + 1] for d in draws)), FILL)
        for i in range(64)
    ]
    assert torch.equal(auto_augment(x, draws, FILL), torch.cat(alone))


def test_one_seed_gives_one_result() -> None:
    x = _images(32)
    first, again, other = (AutoAugment()(x, torch.Generator().manual_seed(s)) for s in (7, 7, 8))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_empty_batch() -> None:
    x = torch.zeros(0, 3, 32, 32, dtype=torch.uint8)
    assert AutoAugment()(x, torch.Generator()).shape == x.shape


def test_float_images_are_refused() -> None:
    with pytest.raises(TypeError, match="uint8"):
        AutoAugment()(torch.zeros(2, 3, 8, 8), torch.Generator())
