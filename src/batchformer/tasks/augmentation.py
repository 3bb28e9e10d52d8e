"""What training images are put through, by the name a configuration gives it."""

from __future__ import annotations

from batchformer.data.transforms import (
    ColorJitter,
    Compose,
    GaussianBlur,
    RandomCrop,
    RandomFlip,
    RandomGrey,
    RandomResizedCrop,
    RandomRotation,
    Transform,
    cifar_test,
    cifar_train,
    digits_train,
)
from batchformer.tasks.config import LongTailConfig


def training_views(config: LongTailConfig) -> tuple[Transform, Transform | None]:
    """The transform of a batch, and that of its second view where the augmentation has one."""
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
