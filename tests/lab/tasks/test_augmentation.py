"""What each augmentation is, step by step."""

from __future__ import annotations

from typing import Any

import pytest

from batchformer.lab.config.data import LongTailConfig
from batchformer.lab.data.feeds import framing
from batchformer.lab.data.transforms import (
    IMAGENET,
    AutoAugment,
    ColorJitter,
    Compose,
    Cutout,
    GaussianBlur,
    IncreasingRandAugment,
    Normalise,
    RandAugment,
    RandomCrop,
    RandomErasing,
    RandomFlip,
    RandomGrey,
    RandomResizedCrop,
    RandomRotation,
    cifar_test,
    digits_train,
)
from batchformer.lab.tasks.image_files import file_views, view_at_test
from batchformer.lab.tasks.long_tailed import training_views

CROPPED = (RandomCrop(4), RandomFlip(0.5))
AUTO = (*CROPPED, AutoAugment(), Cutout(16))
SIMCLR = (
    RandomResizedCrop(32, (0.2, 1)),
    RandomFlip(0.5),
    ColorJitter(0.4, 0.4, 0.4, 0.1, p=0.8),
    RandomGrey(0.2),
    GaussianBlur((0.1, 2.0), p=0.5),
)


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        ("autoaugment", AUTO, None),
        ("standard", CROPPED, None),
        ("rotation", (*CROPPED, RandomRotation(15)), None),
        ("paco", AUTO, SIMCLR),
    ],
)
def test_the_views_of_cifar(name: Any, first: Any, second: Any) -> None:
    view, other = training_views(LongTailConfig(augment=name))
    assert view == Compose((*first, cifar_test()))
    assert other == (None if second is None else Compose((*second, cifar_test())))


def test_the_digits_have_their_own() -> None:
    config = LongTailConfig(name="digits", ratio=50)
    assert training_views(config) == (digits_train(), None)
    two = LongTailConfig(name="digits", ratio=50, augment="paco")
    assert training_views(two) == (digits_train(), digits_train())
    with pytest.raises(ValueError, match="their own augmentation"):
        LongTailConfig(name="digits", augment="rotation")


FLIP = RandomFlip(0.5)
JITTER = ColorJitter(0.4, 0.4, 0.4)
SIM = (
    ColorJitter(0.4, 0.4, 0.4, 0.1, p=1.0),
    RandomGrey(0.2),
    GaussianBlur((0.1, 2.0), p=0.5),
    FLIP,
)


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        ("resized", (FLIP,), None),
        ("jitter", (FLIP, JITTER), None),
        ("paco", (FLIP, JITTER, RandAugment(2, 10)), SIM),
        ("simclr", SIM, SIM),
    ],
)
@pytest.mark.parametrize("data", ["imagenet_lt", "inaturalist18", "places_lt", "folder"])
def test_the_views_of_image_files(data: Any, name: Any, first: Any, second: Any) -> None:
    config = LongTailConfig(name=data, augment=name, size=28)
    inaturalist = Normalise(mean=(0.466, 0.471, 0.380), std=(0.195, 0.194, 0.192))
    end = inaturalist if data == "inaturalist18" else IMAGENET
    crop = framing.RandomResizedCrop(28, scale=(0.08, 1.0))
    view, other = file_views(config)
    assert view == (crop, Compose((*first, end)))
    assert other == (None if second is None else (crop, Compose((*second, end))))
    assert view_at_test(config) == (framing.ResizeCentreCrop(28, 32), end)


def test_tests_of_224_pixels_resize_to_256() -> None:
    geometry, _ = view_at_test(LongTailConfig(name="imagenet_lt", augment="jitter"))
    assert geometry == framing.ResizeCentreCrop(224, 256)


def test_the_view_of_deit() -> None:
    (crop, view), second = file_views(LongTailConfig(name="imagenet", augment="deit", size=28))
    assert second is None
    assert crop == framing.RandomResizedCrop(28, (0.08, 1.0), interpolation="bicubic")
    augment = IncreasingRandAugment(num_ops=2, level=9, noise=0.5, p=0.5)
    erasing = RandomErasing(p=0.25, area=(0.02, 1 / 3), aspect=0.3)
    assert view == Compose((FLIP, augment, IMAGENET, erasing))
