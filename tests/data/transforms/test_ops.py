"""Each operation against torchvision's functional one, sample by sample."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torchvision.transforms.v2 import functional as V

from batchformer.data.transforms import ops


def images(n: int, channels: int = 3, height: int = 32, width: int = 32, seed: int = 0) -> Tensor:
    """Noise, smooth ramps of low contrast, few-valued and constant images, in turn."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randint(256, (n, channels, height, width), generator=g, dtype=torch.uint8)
    ramp = torch.arange(height * width).view(height, width) * 150 // (height * width) + 40
    x[1::4] = (ramp + torch.randint(30, x[1::4].shape, generator=g)).to(torch.uint8)
    x[2::4] = (x[2::4] > 128).to(torch.uint8) * 60 + 7
    x[3::4] = x[3::4, :, :1, :1]
    return x


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


@pytest.mark.parametrize("name", ENHANCEMENTS)
@pytest.mark.parametrize("channels", [1, 3])
def test_enhancements_are_within_one_grey_level(name: str, channels: int) -> None:
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
def test_enhancements_by_any_factor(name: str, factor: list[float], seed: int) -> None:
    ours, theirs = ENHANCEMENTS[name]
    assert compare(ours, theirs, images(4, 3, 9, 11, seed), torch.tensor(factor)) <= 1


@pytest.mark.parametrize("name", ENHANCEMENTS)
def test_factor_one_is_the_identity(name: str) -> None:
    x = images(8)
    assert torch.equal(ENHANCEMENTS[name][0](x, torch.ones(8)), x)


def test_brightness_with_exact_decimals_is_exact() -> None:
    """Tenths of whole numbers must not be truncated to the level below."""
    x = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).repeat(19, 1, 1, 1)
    tenths = torch.arange(1, 20)
    exact = (x.int() * tenths.view(-1, 1, 1, 1) // 10).clamp(max=255).to(torch.uint8)
    assert torch.equal(ops.brightness(x, tenths / 10), exact)


def test_small_images_cannot_be_sharpened() -> None:
    x = images(4, 3, 2, 5)
    assert torch.equal(ops.sharpness(x, torch.full((4,), 1.9)), x)


def test_posterize() -> None:
    x, bits = images(9), torch.arange(9)
    assert compare(ops.posterize, lambda i, b: V.posterize(i, int(b)), x, bits) == 0


def test_solarize() -> None:
    x, threshold = images(40), torch.linspace(255, 0, 10).repeat(4)
    assert compare(ops.solarize, V.solarize, x, threshold) == 0


@pytest.mark.parametrize("channels", [1, 3])
def test_autocontrast(channels: int) -> None:
    x = images(40, channels)
    assert worst(ops.autocontrast(x), V.autocontrast(x)) <= 1


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), height=st.integers(1, 40), width=st.integers(1, 40))
def test_equalize(seed: int, height: int, width: int) -> None:
    x = images(4, 3, height, width, seed)
    assert torch.equal(ops.equalize(x), V.equalize(x))


def test_invert() -> None:
    x = images(8)
    assert torch.equal(ops.invert(x), V.invert(x))


def test_samples_do_not_meet() -> None:
    """A batch gives each sample what the sample alone gives."""
    x = images(8)
    m = torch.linspace(0.1, 1.9, 8)
    for op in (ops.brightness, ops.contrast, ops.color, ops.sharpness):
        alone = torch.cat([op(x[i : i + 1], m[i : i + 1]) for i in range(8)])
        assert torch.equal(op(x, m), alone)
