"""What each augmentation is, step by step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torchvision.transforms import v2

from batchformer.lab.config.data import ContrastConfig, DomainConfig, LongTailConfig, PairConfig
from batchformer.lab.data.feeds import framing
from batchformer.lab.data.transforms import (
    IMAGENET,
    AutoAugment,
    CentreCrop,
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
    RandomSolarize,
    Resize,
    cifar_test,
    digits_train,
)
from batchformer.lab.tasks.compositional import view_of
from batchformer.lab.tasks.domains import scored_view, training_view
from batchformer.lab.tasks.features import views
from batchformer.lab.tasks.image_files import ImageFileTask, in_memory
from batchformer.lab.tasks.long_tailed import LongTailedTask

CPU = torch.device("cpu")
FLIP, GREY, BLUR = RandomFlip(0.5), RandomGrey(0.2), GaussianBlur((0.1, 2.0), p=0.5)
MOCO_JITTER, BYOL_JITTER = (ColorJitter(0.4, 0.4, s, 0.1, p=0.8) for s in (0.4, 0.2))
CROPPED = (RandomCrop(4), FLIP)
AUTO = (*CROPPED, AutoAugment(), Cutout(16))
SMALL_CROP = RandomResizedCrop(32, (0.2, 1.0))
MIDDLE = framing.ResizeCentreCrop(224, 256)


# Long tails.


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        ("autoaugment", AUTO, None),
        ("standard", CROPPED, None),
        ("rotation", (*CROPPED, RandomRotation(15)), None),
        ("paco", AUTO, (SMALL_CROP, FLIP, MOCO_JITTER, GREY, BLUR)),
    ],
)
def test_the_views_of_cifar(name: Any, first: Any, second: Any) -> None:
    view, other = LongTailedTask(None, LongTailConfig(augment=name), CPU).training_views()
    assert view == Compose((*first, cifar_test()))
    assert other == (None if second is None else Compose((*second, cifar_test())))


def test_the_digits_have_their_own() -> None:
    for changes, second in (({}, None), ({"augment": "paco"}, digits_train())):
        config = LongTailConfig(name="digits", ratio=50, **changes)
        assert LongTailedTask(None, config, CPU).training_views() == (digits_train(), second)
    with pytest.raises(ValueError, match="their own augmentation"):
        LongTailConfig(name="digits", augment="rotation")


JITTER = ColorJitter(0.4, 0.4, 0.4)
SIM = (JITTER, GREY, BLUR, FLIP)  # no hue, unlike SimCLR


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
    task = ImageFileTask(None, config, CPU)
    view, other = task.training_views()
    assert view == (crop, Compose((*first, end)))
    assert other == (None if second is None else (crop, Compose((*second, end))))
    assert task.test_view == (framing.ResizeCentreCrop(28, 32), end)


def test_the_view_of_deit() -> None:
    config = LongTailConfig(name="imagenet", augment="deit", size=28)
    task = ImageFileTask(None, config, CPU)
    (crop, view), second = task.training_views()
    assert second is None
    assert task.test_view[0] == framing.ResizeCentreCrop(28, 32, interpolation="bicubic")
    assert crop == framing.RandomResizedCrop(28, (0.08, 1.0), interpolation="bicubic")
    augment = IncreasingRandAugment(num_ops=2, level=9, noise=0.5, p=0.5)
    erasing = RandomErasing(p=0.25, area=(0.02, 1 / 3), aspect=0.3)
    assert view == Compose((FLIP, augment, IMAGENET, erasing))


# Two views for contrastive learning.

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
    found = views(ContrastConfig(name=name, views=kind), files=False)
    wanted = (Compose((SMALL_CROP, *steps, cifar_test())) for steps in (first, second))
    assert found == tuple(wanted)


@pytest.mark.parametrize("kind", ["moco_v2", "byol"])
def test_digits_are_shifted(kind: Any) -> None:
    found = views(ContrastConfig(name="digits", views=kind), files=False)
    assert found == (digits_train(), digits_train())


@pytest.mark.parametrize("name", ["imagenet", "imagenet_lt", "folder"])
def test_two_views_of_image_files(name: Any) -> None:
    always, rarely = (GaussianBlur((0.1, 2.0), p=p) for p in (1.0, 0.1))
    moco = (MOCO_JITTER, GREY, BLUR, FLIP)
    first, second = (BYOL_JITTER, GREY, always, FLIP), (BYOL_JITTER, GREY, rarely, SOLARISED, FLIP)
    crop = framing.RandomResizedCrop(28, scale=(0.2, 1.0))
    for kind, both in (("moco_v2", (moco, moco)), ("byol", (first, second))):
        found = views(ContrastConfig(name=name, size=28, views=kind), files=True)
        assert found == tuple((crop, Compose((*steps, IMAGENET))) for steps in both)


# Pairs, and domains.


def test_views_of_pairs() -> None:
    config, frozen = PairConfig(), PairConfig(augment="none")
    random = (framing.RandomResizedCrop(224), Compose((FLIP, IMAGENET)))
    assert view_of(config, training=True) == random
    for view in (view_of(config, False), view_of(frozen, True), view_of(frozen, False)):
        assert view == (MIDDLE, IMAGENET)


DOMAIN_JITTER = ColorJitter(0.3, 0.3, 0.3, 0.3)
DOMAIN_CROP = framing.RandomResizedCrop(224, scale=(0.7, 1.0))


@pytest.mark.parametrize(
    ("augment", "geometry", "colours"),
    [
        ("domain", DOMAIN_CROP, (DOMAIN_JITTER, RandomGrey(0.1))),
        ("scale", DOMAIN_CROP, (DOMAIN_JITTER,)),
        ("centre", framing.ResizeCentreCrop(224, 256, both=True), ()),
    ],
)
def test_training_images_of_domains(augment: Any, geometry: Any, colours: Any) -> None:
    wanted = (geometry, Compose((FLIP, *colours, IMAGENET)))
    assert training_view(DomainConfig(augment=augment)) == wanted


def test_a_view_in_memory_has_the_crop_of_the_files() -> None:
    view = (framing.RandomResizedCrop(16, (0.7, 1.0), (0.5, 2.0)), Compose((FLIP, JITTER)))
    crop = RandomResizedCrop(16, (0.7, 1.0), (0.5, 2.0))
    assert in_memory(view) == Compose((crop, FLIP, JITTER))
    assert in_memory((MIDDLE, IMAGENET)) == Compose((Resize(256), CentreCrop(224), IMAGENET))


@pytest.mark.parametrize("augment", ["domain", "centre"])
def test_scored_images_of_domains_are_those_of_torchvision(augment: Any) -> None:
    """In memory and from files, within a grey level; both sides are resized."""
    config = DomainConfig(augment=augment, size=28)
    x = torch.randint(0, 256, (3, 3, 40, 56), dtype=torch.uint8)
    sizes = {"domain": [v2.Resize((28, 28))], "centre": [v2.Resize((32, 32)), v2.CenterCrop(28)]}
    expected = IMAGENET(v2.Compose(sizes[augment])(x))
    nothing = torch.empty(3, 0, dtype=torch.float64)
    level = 1 / 255 / 0.224 + 1e-4
    geometry, transform = scored_view(config)
    framed = torch.stack([geometry(image, row) for image, row in zip(x, nothing, strict=True)])
    for found in (in_memory((geometry, transform))(x, nothing), transform(framed, nothing)):
        assert (found - expected).abs().max() < level
