"""Augmentation and normalisation of the experiments."""

from __future__ import annotations

from batchformer.lab.data.transforms.autoaugment import AutoAugment
from batchformer.lab.data.transforms.base import Compose, Normalise, Transform
from batchformer.lab.data.transforms.color import ColorJitter, RandomGrey, RandomSolarize
from batchformer.lab.data.transforms.erase import Cutout
from batchformer.lab.data.transforms.geometry import RandomCrop, RandomFlip
from batchformer.lab.data.transforms.resize import GaussianBlur, Resize

#: Normalisation by the statistics of ImageNet.
IMAGENET = Normalise(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
#: Smallest and largest part of an image that a view of contrastive learning shows.
CONTRAST_SCALE = (0.2, 1.0)


def cifar_train() -> Compose:
    """Crop, flip, AutoAugment, Cutout and normalisation: the CIFAR recipe of Balanced Softmax."""
    return Compose((RandomCrop(4), RandomFlip(), AutoAugment(), Cutout(16), cifar_test()))


def cifar_test() -> Normalise:
    """Normalisation of CIFAR images."""
    return Normalise(mean=(0.4914, 0.4822, 0.4465), std=(0.2023, 0.1994, 0.2010))


def digits_train() -> Compose:
    """A shift of at most one pixel, and normalisation, of 8x8 digits."""
    return Compose((RandomCrop(padding=1), digits_test()))


def digits_test() -> Normalise:
    """Normalisation of 8x8 digits, by the statistics of the complete set."""
    return Normalise(mean=(0.3053,), std=(0.3761,))


def moco_v2(normalise: Normalise = IMAGENET, blur: bool = True) -> Compose:
    """A view of MoCo-v2 after its crop: colour jitter, grey, blur, flip, normalisation.

    Very small images should not be blurred.
    """
    steps: list[Transform] = [ColorJitter(0.4, 0.4, 0.4, 0.1, p=0.8), RandomGrey(0.2)]
    if blur:
        steps.append(GaussianBlur((0.1, 2.0), p=0.5))
    return Compose((*steps, RandomFlip(), normalise))


def byol(first: bool, normalise: Normalise = IMAGENET, blur: bool = True) -> Compose:
    """A view of BYOL and MoCo-v3 after its crop; the two differ in blur and solarisation.

    The first is always blurred and never solarised; the other one is blurred in a tenth of the
    cases and solarised in a fifth. Very small images should not be blurred.
    """
    steps: list[Transform] = [ColorJitter(0.4, 0.4, 0.2, 0.1, p=0.8), RandomGrey(0.2)]
    if blur:
        steps.append(GaussianBlur((0.1, 2.0), p=1.0 if first else 0.1))
    if not first:
        steps.append(RandomSolarize(p=0.2))
    return Compose((*steps, RandomFlip(), normalise))


def domain_test(size: int = 224) -> Compose:
    """Resize the whole image to a square of `size`, whatever its shape, and normalise it."""
    return Compose((Resize((size, size)), IMAGENET))
