"""What images of several domains are put through, by the name a configuration gives it."""

from __future__ import annotations

from batchformer.lab.config.data import DomainConfig
from batchformer.lab.data.feeds import framing
from batchformer.lab.data.feeds.loader import View
from batchformer.lab.data.transforms import (
    IMAGENET,
    CentreCrop,
    ColorJitter,
    Compose,
    RandomFlip,
    RandomGrey,
    RandomResizedCrop,
    Resize,
    Transform,
    digits_test,
    digits_train,
    domain_test,
)

#: Least and largest part of an image that a training crop shows.
SCALE = (0.7, 1.0)


def _colours(config: DomainConfig) -> tuple[Transform, ...]:
    """What follows the geometry in training, normalisation included."""
    if config.augment == "centre":
        return (RandomFlip(), IMAGENET)
    grey = (RandomGrey(0.1),) if config.augment == "domain" else ()
    return (RandomFlip(), ColorJitter(0.3, 0.3, 0.3, 0.3), *grey, IMAGENET)


def _shorter(config: DomainConfig) -> int:
    """The shorter side before the middle is cut out: 256 for 224."""
    return round(config.size * 8 / 7)


def training_view(config: DomainConfig) -> Transform:
    """The transform of training images in memory."""
    if config.augment == "shift":
        return digits_train()
    if config.augment == "centre":
        crop: tuple[Transform, ...] = (Resize(_shorter(config)), CentreCrop(config.size))
    else:
        crop = (RandomResizedCrop(config.size, scale=SCALE),)
    return Compose((*crop, *_colours(config)))


def scored_view(config: DomainConfig) -> Transform:
    """The transform of images in memory that are scored."""
    if config.augment == "shift":
        return digits_test()
    if config.augment == "centre":
        return Compose((Resize(_shorter(config)), CentreCrop(config.size), IMAGENET))
    return domain_test(config.size)


def training_file_view(config: DomainConfig) -> View:
    """Geometry and transform of training images from files."""
    if config.augment == "centre":
        geometry: framing.Geometry = framing.ResizeCentreCrop(config.size, _shorter(config))
    else:
        geometry = framing.RandomResizedCrop(config.size, scale=SCALE)
    return geometry, Compose(_colours(config))


def scored_file_view(config: DomainConfig) -> View:
    """Geometry and transform of images from files that are scored."""
    if config.augment == "centre":
        return framing.ResizeCentreCrop(config.size, _shorter(config)), IMAGENET
    return framing.ResizeWhole(config.size), IMAGENET
