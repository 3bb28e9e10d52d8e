from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as V

from batchformer.lab.data.transforms.color import RandomGrey, RandomSolarize

Maker = Callable[..., Tensor]


def test_grey_of_the_chosen(images: Maker, numbers: Maker) -> None:
    x, u = images(64), numbers(64, 1)
    out = RandomGrey(0.4)(x, u)
    chosen = u[:, 0] < 0.4
    assert (out[chosen].int() - V.rgb_to_grayscale(x[chosen], 3).int()).abs().max() <= 1
    assert torch.equal(out[chosen, 0], out[chosen, 1])
    assert torch.equal(out[~chosen], x[~chosen])


@pytest.mark.parametrize("threshold", [0, 128, 200, 256])
def test_solarize_the_chosen(threshold: int, images: Maker, numbers: Maker) -> None:
    x, u = images(64), numbers(64, 1)
    out = RandomSolarize(threshold, 0.4)(x, u)
    chosen = u[:, 0] < 0.4
    reference = torch.where(x.int() >= threshold, 255 - x, x)
    assert torch.equal(out[chosen], reference[chosen])
    assert torch.equal(out[~chosen], x[~chosen])
    if threshold < 256:  # torchvision refuses thresholds beyond white
        assert torch.equal(reference, V.solarize(x, threshold))


@pytest.mark.parametrize("p", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("kind", [RandomGrey, RandomSolarize])
def test_probabilities_are_met(
    kind: type[RandomGrey] | type[RandomSolarize], p: float, numbers: Maker
) -> None:
    n = 10_000
    x = torch.tensor([200, 100, 50], dtype=torch.uint8).view(1, 3, 1, 1).expand(n, -1, -1, -1)
    changed = (kind(p=p)(x, numbers(n, 1)) != x).flatten(1).any(1)
    assert abs(changed.double().mean().item() - p) <= 4 * (p * (1 - p) / n) ** 0.5
