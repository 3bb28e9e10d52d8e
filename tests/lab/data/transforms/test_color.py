"""Operations on values against torchvision, alone, in sequence and drawn at random."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as V

from batchformer.lab.data.transforms import color as ops
from batchformer.lab.data.transforms.base import apply_where
from batchformer.lab.data.transforms.color import (
    IDENTITY,
    OPERATIONS,
    ORDERS,
    ColorJitter,
    RandomGrey,
    RandomSolarize,
    apply_in_sequence,
)
from helpers.pixels import images, numbers


def worst(ours: Tensor, theirs: Tensor) -> int:
    assert ours.shape == theirs.shape
    assert ours.dtype == theirs.dtype == torch.uint8
    return int((ours.int() - theirs.int()).abs().max())


def compare(
    ours: Callable[[Tensor, Tensor], Tensor],
    theirs: Callable[[Tensor, float], Tensor],
    x: Tensor,
    parameter: Tensor,
) -> int:
    before = x.clone()
    out = ours(x, parameter)
    assert torch.equal(x, before), "the input was changed"
    reference = [theirs(image, p) for image, p in zip(x, parameter.tolist(), strict=True)]
    return worst(out, torch.stack(reference))


ENHANCEMENTS = {
    "brightness": (ops.brightness, V.adjust_brightness),
    "color": (ops.color, V.adjust_saturation),
    "contrast": (ops.contrast, V.adjust_contrast),
    "sharpness": (ops.sharpness, V.adjust_sharpness),
}


@settings(max_examples=25)
@given(
    name=st.sampled_from(sorted(ENHANCEMENTS)),
    factor=st.lists(st.floats(0, 3, width=32), min_size=4, max_size=4),
    channels=st.sampled_from([1, 3]),
    seed=st.integers(0, 10**6),
)
def test_enhancements_are_within_one_grey_level(
    name: str, factor: list[float], channels: int, seed: int
) -> None:
    ours, theirs = ENHANCEMENTS[name]
    assert compare(ours, theirs, images(4, channels, 9, 11, seed), torch.tensor(factor)) <= 1


def test_what_changes_nothing() -> None:
    x, small, one_channel = images(8), images(8, 3, 2, 5), images(8, 1)
    for act, _ in ENHANCEMENTS.values():
        assert torch.equal(act(x, torch.ones(8)), x)
    assert torch.equal(ops.hue(x, torch.zeros(8)), x)
    assert torch.equal(ops.sharpness(small, torch.full((8,), 1.9)), small), "no pixel is inside"
    assert torch.equal(ops.hue(one_channel, torch.full((8,), 0.3)), one_channel)
    assert torch.equal(ops.grey(one_channel), one_channel)


def test_brightness_with_exact_decimals_is_exact() -> None:
    """Tenths of whole numbers must not be truncated to the level below."""
    x = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).repeat(19, 1, 1, 1)
    tenths = torch.arange(1, 20)
    exact = (x.int() * tenths.view(-1, 1, 1, 1) // 10).clamp(max=255).to(torch.uint8)
    assert torch.equal(ops.brightness(x, tenths / 10), exact)


def test_levels_are_torchvisions() -> None:
    x, bits, threshold = images(40), torch.arange(9), torch.linspace(255, 0, 10).repeat(4)
    assert compare(ops.posterize, lambda i, b: V.posterize(i, int(b)), x[:9], bits) == 0
    assert compare(ops.solarize, V.solarize, x, threshold) == 0
    assert worst(ops.invert(x), V.invert(x)) == 0
    assert worst(ops.grey(x), V.rgb_to_grayscale(x, 3)) <= 1
    for one in (x, images(40, 1)):
        assert worst(ops.autocontrast(one), V.autocontrast(one)) <= 1


@settings(max_examples=25)
@given(seed=st.integers(0, 10**6), height=st.integers(1, 40), width=st.integers(1, 40))
def test_equalize(seed: int, height: int, width: int) -> None:
    x = images(4, 3, height, width, seed)
    assert torch.equal(ops.equalize(x), V.equalize(x))


def test_hue_of_every_kind_of_pixel() -> None:
    """All triples of seven levels, all sextants, both ends: few pixels differ at all."""
    level = torch.tensor([0, 1, 2, 100, 127, 254, 255], dtype=torch.uint8)
    pixels = torch.cartesian_prod(level, level, level).T.reshape(1, 3, 7, 49)
    turns = torch.linspace(-0.5, 0.5, 49)
    x = pixels.expand(49, -1, -1, -1)
    assert compare(ops.hue, V.adjust_hue, x, turns) <= 1
    reference = torch.stack([V.adjust_hue(i, t) for i, t in zip(x, turns.tolist(), strict=True)])
    # Where the exact value is a whole number, torchvision's floating point decides.
    assert (ops.hue(x, turns) != reference).float().mean() < 0.02


def test_solarize_add_stops_at_white() -> None:
    x = torch.tensor([0, 100, 127, 128, 255], dtype=torch.uint8).view(1, 1, 1, 5).expand(2, 1, 1, 5)
    out = ops.solarize_add(x, torch.tensor([50.0, 128.0]))
    assert out.dtype == torch.uint8
    assert out.flatten(1).tolist() == [[50, 150, 177, 128, 255], [128, 228, 255, 128, 255]]


def test_operations_follow_each_other() -> None:
    x = images(8)
    names = ("solarize", "invert", "brightness")
    code = torch.tensor([[OPERATIONS.index(name)] * 8 for name in names])
    code[1, 5:] = IDENTITY
    values = torch.stack([torch.linspace(90, 110, 8), torch.zeros(8), torch.linspace(0.5, 1.5, 8)])
    expected = ops.solarize(x, values[0])
    expected[:5] = ops.invert(expected[:5])
    expected = ops.brightness(expected, values[2])
    assert torch.equal(apply_in_sequence(x, code, values), expected)


@pytest.mark.parametrize("rows", [[], [2], [0, 3, 4], list(range(6))])
def test_the_chosen_are_changed_with_their_own_parameters(rows: list[int]) -> None:
    x = images(6)
    before = x.clone()
    chosen = torch.zeros(6, dtype=torch.bool)
    chosen[rows] = True
    factor = torch.linspace(0.2, 1.8, 6)
    out = apply_where(x, chosen, ops.brightness, factor)
    assert torch.equal(x, before)
    assert torch.equal(out, torch.where(chosen.view(-1, 1, 1, 1), ops.brightness(x, factor), x))


def test_every_order_matches_torchvision() -> None:
    """The same order and factors, sample by sample."""
    reference = v2.ColorJitter(0.4, 0.4, 0.4, 0.1)
    n = 24 * 8
    x = images(n, 3, 16, 16)
    u = numbers(n, 6)
    u[:, 1] = (torch.arange(n) % 24 + 0.5) / 24
    jitter = ColorJitter(0.4, 0.4, 0.4, 0.1)
    order, parameter, _ = jitter.parameters(u)
    assert torch.equal(order, ORDERS.repeat(8, 1))
    out = jitter(x, u)
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


def test_parameters_have_torchvisions_ranges() -> None:
    u = numbers(500, 6)
    order, parameter, acts = ColorJitter(0.4, 1.5, 0.0, 0.1, p=0.8).parameters(u)
    assert torch.equal(order, ORDERS[(24 * u[:, 1]).long()])
    assert sorted(map(tuple, ORDERS.tolist())) == list(permutations(range(4)))
    low, high = torch.tensor([[0.6, 0.0, 1.0, -0.1], [1.4, 2.5, 1.0, 0.1]], dtype=torch.float64)
    torch.testing.assert_close(parameter, low + (high - low) * u[:, 2:])
    # A sample is changed by all that has a strength, or not at all.
    assert torch.equal(acts, (u[:, :1] < 0.8) & torch.tensor([True, True, False, True]))


def test_samples_that_do_not_act_stay_and_one_channel_too() -> None:
    """Saturation and hue leave one channel as it is."""
    x, u = images(64), numbers(64, 6)
    same = (ColorJitter(0.4, 0.4, 0.4, 0.1, p=0.5)(x, u) == x).flatten(1).all(1)
    assert same[u[:, 0] >= 0.5].all() and not same[(u[:, 0] < 0.5)].all()
    x, u = images(16, 1), numbers(16, 6)
    assert torch.equal(ColorJitter(saturation=0.9, hue=0.5)(x, u), x)
    assert torch.equal(
        ColorJitter(0.4, 0.4, 0.9, 0.5)(x, u),
        ColorJitter(0.4, 0.4)(x, u),
    )
    for wrong in ({"brightness": -0.1}, {"hue": 0.6}):
        with pytest.raises(ValueError, match="hue must be at most"):
            ColorJitter(**wrong)


@pytest.mark.parametrize("threshold", [0, 128, 256])
def test_the_chosen_are_solarized_or_grey(threshold: int) -> None:
    x, u = images(64), numbers(64, 1)
    chosen = (u[:, 0] < 0.4).view(-1, 1, 1, 1)
    solarized = torch.where(x.int() >= threshold, 255 - x, x)
    assert torch.equal(RandomSolarize(threshold, 0.4)(x, u), torch.where(chosen, solarized, x))
    assert torch.equal(RandomGrey(0.4)(x, u), torch.where(chosen, ops.grey(x), x))
