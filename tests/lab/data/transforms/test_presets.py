from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torchvision.transforms import v2

from batchformer.lab.data.transforms import (
    AutoAugment,
    Cutout,
    RandomCrop,
    RandomFlip,
    Transform,
    cifar_train,
    digits_test,
    digits_train,
    domain_test,
)

Maker = Callable[..., Tensor]
#: Of ImageNet.
STATISTICS = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])


@pytest.mark.parametrize(
    ("preset", "steps", "mean", "std"),
    [
        (
            cifar_train(),
            (RandomCrop(4), RandomFlip(0.5), AutoAugment(), Cutout(16)),
            [0.4914, 0.4822, 0.4465],
            [0.2023, 0.1994, 0.2010],
        ),
        (digits_train(), (RandomCrop(1),), [0.3053], [0.3761]),
    ],
    ids=["cifar", "digits"],
)
def test_training_follows_the_published_order(
    preset: Transform,
    steps: tuple[Transform, ...],
    mean: list[float],
    std: list[float],
    images: Maker,
    numbers: Maker,
) -> None:
    x, u = images(32, len(mean)), numbers(32, preset.draws)
    expected, used = x, 0
    for step in steps:
        expected = step(expected, u[:, used : used + step.draws])
        used += step.draws
    assert used == preset.draws
    expected = expected / 255
    expected = (expected - torch.tensor(mean).view(-1, 1, 1)) / torch.tensor(std).view(-1, 1, 1)
    torch.testing.assert_close(preset(x, u), expected)


def test_testing_is_torchvisions(images: Maker) -> None:
    preset = domain_test(24)
    x = images(8, 3, 40, 56)
    reference = v2.Compose(
        [
            v2.Resize([24, 24], antialias=True),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(*STATISTICS),
        ]
    )(x)
    out = preset(x, torch.empty(8, 0, dtype=torch.float64))
    assert preset.draws == 0
    # One grey level, in units of the smallest deviation.
    torch.testing.assert_close(out, reference, rtol=0, atol=1.001 / 255 / 0.224)


def test_digits_statistics_are_those_of_the_set() -> None:
    from sklearn.datasets import load_digits

    x = torch.from_numpy(load_digits().images / 16)
    preset = digits_test()
    assert preset.mean == pytest.approx((x.mean().item(),), abs=1e-4)
    assert preset.std == pytest.approx((x.std().item(),), abs=1e-4)
