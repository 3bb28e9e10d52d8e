"""Each operation against torchvision's functional one, sample by sample."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torchvision.transforms.v2 import functional as V

from batchformer.lab.data.transforms import color as ops


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


Images = Callable[..., Tensor]
ENHANCEMENTS = {
    "brightness": (ops.brightness, V.adjust_brightness),
    "color": (ops.color, V.adjust_saturation),
    "contrast": (ops.contrast, V.adjust_contrast),
    "sharpness": (ops.sharpness, V.adjust_sharpness),
}


@pytest.mark.parametrize("name", ENHANCEMENTS)
@pytest.mark.parametrize("channels", [1, 3])
def test_enhancements_are_within_one_grey_level(name: str, channels: int, images: Images) -> None:
    ours, theirs = ENHANCEMENTS[name]
    factors = torch.linspace(0.1, 1.9, 19).repeat(4)
    x = images(len(factors), channels, 20, 28)
    x = x[torch.randperm(len(x), generator=torch.Generator().manual_seed(1))]
    assert compare(ours, theirs, x, factors) <= 1


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(sorted(ENHANCEMENTS)),
    factor=st.lists(st.floats(0, 3, width=32), min_size=4, max_size=4),
    seed=st.integers(0, 10**6),
)
def test_enhancements_by_any_factor(
    name: str, factor: list[float], seed: int, images: Images
) -> None:
    ours, theirs = ENHANCEMENTS[name]
    assert compare(ours, theirs, images(4, 3, 9, 11, seed), torch.tensor(factor)) <= 1


@pytest.mark.parametrize("name", ENHANCEMENTS)
def test_factor_one_is_the_identity(name: str, images: Images) -> None:
    x = images(8)
    assert torch.equal(ENHANCEMENTS[name][0](x, torch.ones(8)), x)


def test_brightness_with_exact_decimals_is_exact() -> None:
    """Tenths of whole numbers must not be truncated to the level below."""
    x = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).repeat(19, 1, 1, 1)
    tenths = torch.arange(1, 20)
    exact = (x.int() * tenths.view(-1, 1, 1, 1) // 10).clamp(max=255).to(torch.uint8)
    assert torch.equal(ops.brightness(x, tenths / 10), exact)


def test_small_images_cannot_be_sharpened(images: Images) -> None:
    x = images(4, 3, 2, 5)
    assert torch.equal(ops.sharpness(x, torch.full((4,), 1.9)), x)


def test_posterize(images: Images) -> None:
    x, bits = images(9), torch.arange(9)
    assert compare(ops.posterize, lambda i, b: V.posterize(i, int(b)), x, bits) == 0


def test_solarize(images: Images) -> None:
    x, threshold = images(40), torch.linspace(255, 0, 10).repeat(4)
    assert compare(ops.solarize, V.solarize, x, threshold) == 0


@pytest.mark.parametrize("channels", [1, 3])
def test_autocontrast(channels: int, images: Images) -> None:
    x = images(40, channels)
    assert worst(ops.autocontrast(x), V.autocontrast(x)) <= 1


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), height=st.integers(1, 40), width=st.integers(1, 40))
def test_equalize(seed: int, height: int, width: int, images: Images) -> None:
    x = images(4, 3, height, width, seed)
    assert torch.equal(ops.equalize(x), V.equalize(x))


def test_invert(images: Images) -> None:
    x = images(8)
    assert torch.equal(ops.invert(x), V.invert(x))


@settings(max_examples=40, deadline=None)
@given(
    turns=st.lists(st.floats(-0.5, 0.5, width=32), min_size=8, max_size=8),
    seed=st.integers(0, 10**6),
)
def test_hue_is_within_one_grey_level(turns: list[float], seed: int, images: Images) -> None:
    x = images(8, 3, 9, 11, seed)
    assert compare(ops.hue, V.adjust_hue, x, torch.tensor(turns)) <= 1


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


def test_no_turn_and_three_thirds_are_the_identity(images: Images) -> None:
    x = images(8)
    assert torch.equal(ops.hue(x, torch.zeros(8)), x)
    third = torch.full((8,), 1 / 3, dtype=torch.float64)
    turned = ops.hue(x, third)
    # A third of the circle moves each channel's value to the next channel.
    assert worst(turned, x.roll(1, 1)) <= 1
    assert worst(ops.hue(ops.hue(turned, third), third), x) <= 3


def test_one_channel_has_no_hue_and_is_grey(images: Images) -> None:
    x = images(4, 1)
    assert torch.equal(ops.hue(x, torch.full((4,), 0.3)), x)
    assert torch.equal(ops.grey(x), x)


def test_grey(images: Images) -> None:
    x = images(16)
    assert worst(ops.grey(x), V.rgb_to_grayscale(x, 3)) <= 1


def test_samples_do_not_meet(images: Images) -> None:
    """A batch gives each sample what the sample alone gives."""
    x = images(8)
    m = torch.linspace(0.1, 1.9, 8)
    for op in (ops.brightness, ops.contrast, ops.color, ops.sharpness):
        alone = torch.cat([op(x[i : i + 1], m[i : i + 1]) for i in range(8)])
        assert torch.equal(op(x, m), alone)


def test_solarize_add_stops_at_white() -> None:
    x = torch.tensor([0, 100, 127, 128, 255], dtype=torch.uint8).view(1, 1, 1, 5).expand(2, 1, 1, 5)
    out = ops.solarize_add(x, torch.tensor([50.0, 128.0]))
    assert out.dtype == torch.uint8
    assert out.flatten(1).tolist() == [[50, 150, 177, 128, 255], [128, 228, 255, 128, 255]]
