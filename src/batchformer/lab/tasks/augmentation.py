"""Augmentation of long-tailed images, by the name a configuration gives it."""

from __future__ import annotations

from batchformer.lab.config.data import LongTailConfig
from batchformer.lab.data.feeds import framing
from batchformer.lab.data.feeds.loader import View
from batchformer.lab.data.transforms import (
    IMAGENET,
    ColorJitter,
    Compose,
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
    Transform,
    cifar_test,
    cifar_train,
    digits_train,
)

#: Normalisation of iNaturalist 2018.
INATURALIST = Normalise(mean=(0.466, 0.471, 0.380), std=(0.195, 0.194, 0.192))


def training_views(config: LongTailConfig) -> tuple[Transform, Transform | None]:
    """The transform of a batch, and that of its second view if the augmentation has one."""
    if config.name == "digits":
        return digits_train(), digits_train() if config.augment == "paco" else None
    if config.augment == "standard":
        return Compose((RandomCrop(4), RandomFlip(), cifar_test())), None
    if config.augment == "rotation":
        return Compose((RandomCrop(4), RandomFlip(), RandomRotation(15), cifar_test())), None
    return cifar_train(), cifar_simclr() if config.augment == "paco" else None


def cifar_simclr(size: int = 32) -> Compose:
    """SimCLR's view of CIFAR images: resized crop, flip, colour jitter, grey, blur."""
    return Compose(
        (
            RandomResizedCrop(size, scale=(0.2, 1.0)),
            RandomFlip(),
            ColorJitter(0.4, 0.4, 0.4, 0.1, p=0.8),
            RandomGrey(0.2),
            GaussianBlur((0.1, 2.0), p=0.5),
            cifar_test(),
        )
    )


def normalise_files(name: str) -> Normalise:
    """Normalisation of the data set of image files with this name."""
    return INATURALIST if name == "inaturalist18" else IMAGENET


def file_views(config: LongTailConfig) -> tuple[View, View | None]:
    """Geometry and transform of training images from files, and those of their second view.

    PaCo's first view has torchvision's RandAugment with 2 operations of magnitude 10; its authors
    use another implementation, with noise on the magnitude. DeiT's crop is bicubic, as in timm, and
    with RandAugment colours are not jittered.
    """
    crop, end = framing.RandomResizedCrop(config.size), normalise_files(config.name)
    if config.augment == "deit":
        fine = framing.RandomResizedCrop(config.size, interpolation="bicubic")
        steps = (RandomFlip(), IncreasingRandAugment(), end, RandomErasing())
        return (fine, Compose(steps)), None
    jitter = ColorJitter(0.4, 0.4, 0.4)
    plain = Compose((RandomFlip(), end))
    jittered = Compose((RandomFlip(), jitter, end))
    augmented = Compose((RandomFlip(), jitter, RandAugment(2, 10), end))
    simclr = Compose(
        (
            ColorJitter(0.4, 0.4, 0.4, 0.1),
            RandomGrey(0.2),
            GaussianBlur((0.1, 2.0), p=0.5),
            RandomFlip(),
            end,
        )
    )
    first = {"resized": plain, "jitter": jittered, "paco": augmented, "simclr": simclr}
    two = config.augment in ("paco", "simclr")
    return (crop, first[config.augment]), (crop, simclr) if two else None


def view_at_test(config: LongTailConfig) -> View:
    """Geometry and transform of test images from files: shorter side resized, centre cropped."""
    shorter = round(config.size * 8 / 7)
    return framing.ResizeCentreCrop(config.size, shorter), normalise_files(config.name)
