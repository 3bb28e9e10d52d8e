"""The augmentation and normalisation of each experiment."""

from __future__ import annotations

import pytest
import torch
from torchvision.transforms import v2

from batchformer.lab.data.transforms import (
    Compose,
    Normalise,
    RandomCrop,
    cifar_test,
    digits_test,
    digits_train,
    domain_test,
)
from helpers.pixels import images

#: Of ImageNet.
STATISTICS = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])


def test_small_images() -> None:
    """What the views of CIFAR are made of is in the tests of tasks."""
    assert cifar_test() == Normalise(mean=(0.4914, 0.4822, 0.4465), std=(0.2023, 0.1994, 0.2010))
    assert digits_train() == Compose((RandomCrop(1), digits_test()))


def test_testing_is_torchvisions() -> None:
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
