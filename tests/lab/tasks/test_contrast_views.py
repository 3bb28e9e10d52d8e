"""What the two views are, step by step."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from batchformer.lab.config.data import ContrastConfig
from batchformer.lab.data.feeds import framing
from batchformer.lab.data.transforms import (
    IMAGENET,
    ColorJitter,
    Compose,
    GaussianBlur,
    RandomFlip,
    RandomGrey,
    RandomResizedCrop,
    RandomSolarize,
    cifar_test,
    digits_train,
)
from batchformer.lab.tasks.features import contrasted_file_views, views

GREY, FLIP = RandomGrey(0.2), RandomFlip(0.5)
MOCO_JITTER, BYOL_JITTER = (ColorJitter(0.4, 0.4, s, 0.1, p=0.8) for s in (0.4, 0.2))
SOLARISED = RandomSolarize(128, p=0.2)


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
@pytest.mark.parametrize(
    ("kind", "first", "second"),
    [
        ("moco_v2", (MOCO_JITTER, GREY, FLIP), (MOCO_JITTER, GREY, FLIP)),
        ("byol", (BYOL_JITTER, GREY, FLIP), (BYOL_JITTER, GREY, SOLARISED, FLIP)),
    ],
)
def test_views_of_cifar_are_not_blurred(name: Any, kind: Any, first: Any, second: Any) -> None:
    crop, end = RandomResizedCrop(32, scale=(0.2, 1.0)), cifar_test()
    found = views(ContrastConfig(name=name, views=kind))
    assert found == (Compose((crop, *first, end)), Compose((crop, *second, end)))
    x = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8)
    for view in found:
        out = view(x, torch.rand(4, view.draws, dtype=torch.float64))
        assert out.shape == x.shape and out.dtype == torch.float32 and out.isfinite().all()


@pytest.mark.parametrize("kind", ["moco_v2", "byol"])
def test_digits_are_shifted(kind: Any) -> None:
    assert views(ContrastConfig(name="digits", views=kind)) == (digits_train(), digits_train())


@pytest.mark.parametrize("name", ["imagenet", "imagenet_lt", "folder"])
def test_views_of_image_files(name: Any) -> None:
    crop = framing.RandomResizedCrop(28, scale=(0.2, 1.0))
    one = Compose((MOCO_JITTER, GREY, GaussianBlur((0.1, 2.0), p=0.5), FLIP, IMAGENET))
    config = ContrastConfig(name=name, size=28, views="moco_v2")
    assert contrasted_file_views(config) == ((crop, one), (crop, one))
    first = Compose((BYOL_JITTER, GREY, GaussianBlur((0.1, 2.0), p=1.0), FLIP, IMAGENET))
    rarely = GaussianBlur((0.1, 2.0), p=0.1)
    second = Compose((BYOL_JITTER, GREY, rarely, SOLARISED, FLIP, IMAGENET))
    config = ContrastConfig(name=name, size=28, views="byol")
    assert contrasted_file_views(config) == ((crop, first), (crop, second))
