from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as V

from batchformer.lab.data.transforms.geometry import RandomRotation

Maker = Callable[..., Tensor]


@pytest.mark.parametrize("size", [(32, 32), (21, 30), (96, 96)])
def test_matches_torchvision_but_for_ties(
    size: tuple[int, int], images: Maker, numbers: Maker
) -> None:
    x, u = images(40, 3, *size), numbers(40, 1)
    out = RandomRotation(15, fill=9)(x, u)
    angles = (30 * u[:, 0] - 15).tolist()
    nearest = InterpolationMode.NEAREST
    reference = torch.stack(
        [V.rotate(i, a, interpolation=nearest, fill=9) for i, a in zip(x, angles, strict=True)]
    )
    assert (out != reference).any(1).float().mean() < 5e-3
    assert (out != x).any(1).float().mean() > 0.3


def test_angles_have_their_range(numbers: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Tensor] = []

    def note(degrees: Tensor, height: int, width: int) -> Tensor:
        seen.append(degrees)
        return torch.zeros(len(degrees), 2, 3)

    monkeypatch.setattr("batchformer.lab.data.transforms.geometry.rotate", note)
    RandomRotation(15)(torch.zeros(5000, 1, 2, 2, dtype=torch.uint8), numbers(5000, 1))
    (angle,) = seen
    assert -15 <= angle.min() < -14.9 and 14.9 < angle.max() < 15
    # Uniform over 30 degrees: the mean of 5,000 has a standard deviation of 0.12.
    assert angle.mean().item() == pytest.approx(0, abs=0.5)
