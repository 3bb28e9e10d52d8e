from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torchvision.transforms import v2

from batchformer.lab.data.transforms.color import ORDERS, ColorJitter, color_jitter

Maker = Callable[..., Tensor]


def test_every_order_matches_torchvision(images: Maker, numbers: Maker) -> None:
    """The same order and factors, sample by sample."""
    reference = v2.ColorJitter(0.4, 0.4, 0.4, 0.1)
    n = 24 * 8
    x = images(n, 3, 16, 16)
    order = ORDERS.repeat(8, 1)
    _, parameter, _ = ColorJitter(0.4, 0.4, 0.4, 0.1).parameters(numbers(n, 6))
    out = color_jitter(x, order, parameter, torch.ones(n, 4, dtype=torch.bool))
    worst, beyond = 0, 0.0
    for image, ours, fn, values in zip(x, out, order, parameter.tolist(), strict=True):
        names = ("brightness_factor", "contrast_factor", "saturation_factor", "hue_factor")
        theirs = reference.transform(image, {"fn_idx": fn, **dict(zip(names, values, strict=True))})
        difference = (ours.int() - theirs.int()).abs()
        worst = max(worst, int(difference.max()))
        beyond += (difference > 1).float().mean().item() / n
    # One grey level in each of four operations, enlarged by those that follow.
    assert worst <= 4
    assert beyond < 0.01


def test_parameters_have_torchvisions_ranges(numbers: Maker) -> None:
    u = numbers(20_000, 6)
    order, parameter, acts = ColorJitter(0.4, 1.5, 0.0, 0.1, p=0.8).parameters(u)
    assert parameter.amin(0).tolist() == pytest.approx([0.6, 0.0, 1.0, -0.1], abs=2e-3)
    assert parameter.amax(0).tolist() == pytest.approx([1.4, 2.5, 1.0, 0.1], abs=2e-3)
    assert parameter.mean(0).tolist() == pytest.approx([1.0, 1.25, 1.0, 0.0], abs=0.02)
    # The order of each sample is a permutation, and all 24 are equally likely: 833 expected of
    # each, with a standard deviation of 28.
    assert torch.equal(order.sort(1).values, torch.arange(4).expand(20_000, 4))
    counts = torch.bincount(order @ torch.tensor([64, 16, 4, 1]))
    counts = counts[counts > 0]
    assert len(counts) == 24 and counts.min() > 700 and counts.max() < 970
    # A sample is changed by all that has a strength, or not at all.
    assert torch.equal(acts[:, 0], acts[:, 1]) and torch.equal(acts[:, 0], acts[:, 3])
    assert not acts[:, 2].any()
    assert acts[:, 0].double().mean().item() == pytest.approx(0.8, abs=4 * (0.16 / 20_000) ** 0.5)


def test_samples_that_do_not_act_stay(images: Maker, numbers: Maker) -> None:
    x, u = images(64), numbers(64, 6)
    jitter = ColorJitter(0.4, 0.4, 0.4, 0.1, p=0.5)
    same = (jitter(x, u) == x).flatten(1).all(1)
    assert same[u[:, 0] >= 0.5].all() and not same[(u[:, 0] < 0.5)].all()


def test_one_channel(images: Maker, numbers: Maker) -> None:
    """Saturation and hue leave one channel as it is."""
    x, u = images(16, 1), numbers(16, 6)
    assert torch.equal(ColorJitter(saturation=0.9, hue=0.5)(x, u), x)
    assert torch.equal(
        ColorJitter(0.4, 0.4, 0.9, 0.5)(x, u),
        ColorJitter(0.4, 0.4)(x, u),
    )


@pytest.mark.parametrize("wrong", [{"brightness": -0.1}, {"hue": 0.6}])
def test_impossible_strengths_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="hue must be at most"):
        ColorJitter(**wrong)
