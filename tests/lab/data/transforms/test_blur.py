from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torchvision.transforms.v2 import functional as V

from batchformer.lab.data.transforms.resize import GaussianBlur, gaussian_blur, kernel_size_for

Maker = Callable[..., Tensor]


@settings(max_examples=40, deadline=None)
@given(
    sigma=st.lists(st.floats(0.1, 4.0), min_size=4, max_size=4),
    kernel=st.sampled_from([1, 3, 5, 13, 23]),
    height=st.integers(12, 30),
    width=st.integers(12, 30),
    channels=st.sampled_from([1, 3]),
)
def test_within_one_grey_level_of_torchvision(
    sigma: list[float], kernel: int, height: int, width: int, channels: int, images: Maker
) -> None:
    x = images(4, channels, height, width)
    before = x.clone()
    out = gaussian_blur(x, torch.tensor(sigma, dtype=torch.float64), kernel)
    assert torch.equal(x, before)
    reference = torch.stack(
        [V.gaussian_blur(i, [kernel, kernel], [s, s]) for i, s in zip(x, sigma, strict=True)]
    )
    assert out.shape == x.shape
    assert (out.int() - reference.int()).abs().max() <= 1


def test_the_narrowest_is_the_identity_and_constants_stay(images: Maker) -> None:
    x = images(4)
    assert torch.equal(gaussian_blur(x, torch.full((4,), 0.1), 13), x)
    flat = torch.arange(256, dtype=torch.uint8).view(256, 1, 1, 1).expand(-1, 1, 13, 13)
    assert torch.equal(gaussian_blur(flat, torch.full((256,), 2.0), 23), flat)


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0])
def test_the_chosen_are_blurred_by_their_own_sigma(p: float, images: Maker, numbers: Maker) -> None:
    x, u = images(400, 1, 14, 14), numbers(400, 2)
    out = GaussianBlur((0.5, 2.0), p)(x, u)
    chosen = u[:, 0] < p
    assert abs(chosen.double().mean().item() - p) <= 4 * (p * (1 - p) / 400) ** 0.5
    assert torch.equal(out[~chosen], x[~chosen])
    assert torch.equal(out[chosen], gaussian_blur(x[chosen], 0.5 + 1.5 * u[chosen, 1], 13))


def test_the_kernel_reaches_three_deviations() -> None:
    assert [kernel_size_for(s) for s in (0.3, 1.0, 2.0, 2.1)] == [3, 7, 13, 15]


def test_impossible_settings_are_refused(images: Maker) -> None:
    with pytest.raises(ValueError, match="odd and positive, got 4"):
        GaussianBlur(kernel_size=4)
    with pytest.raises(ValueError, match="smallest first"):
        GaussianBlur(sigma=(2.0, 0.1))
    with pytest.raises(ValueError, match=r"images of 6 x 40 are too small .* 6 pixels"):
        gaussian_blur(images(1, 3, 6, 40), torch.ones(1), 13)
