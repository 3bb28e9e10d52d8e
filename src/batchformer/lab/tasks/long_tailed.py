"""Long-tailed recognition on images in memory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch

from batchformer.lab.config.data import LongTailConfig
from batchformer.lab.data.sets.digits import digits_lt
from batchformer.lab.data.sets.images import ImageSplit, LongTailedData, only_classes
from batchformer.lab.data.transforms import (
    ColorJitter,
    Compose,
    GaussianBlur,
    Normalise,
    RandomCrop,
    RandomFlip,
    RandomGrey,
    RandomResizedCrop,
    RandomRotation,
    Transform,
    cifar_test,
    cifar_train,
    digits_test,
    digits_train,
)
from batchformer.lab.tasks.base import LabelledTask


@dataclass(frozen=True)
class LongTailedTask(LabelledTask):
    """Data, batches and scores of one long-tailed experiment."""

    data: LongTailedData[ImageSplit]
    test_batch: ClassVar[int] = 1000

    @classmethod
    def load(cls, config: LongTailConfig, device: torch.device) -> LongTailedTask:
        bounds = (config.min_images, config.max_images)
        if config.name == "digits":
            digits = digits_lt(config.ratio, config.seed)
            return cls(only_classes(digits, *bounds), config, device)
        from batchformer.lab.data.sets.cifar import cifar_lt  # late: the digits do not need it

        root = None if config.root is None else Path(config.root).expanduser()
        data = cifar_lt(config.name, config.ratio, config.profile, root, config.seed)
        return cls(only_classes(data, *bounds), config, device)

    def training_views(self) -> tuple[Transform, Transform | None]:
        """The views of the configured augmentation."""
        name, augment = self.config.name, self.config.augment
        if name == "digits":
            return digits_train(), digits_train() if augment == "paco" else None
        if augment == "standard":
            return Compose((RandomCrop(4), RandomFlip(), cifar_test())), None
        if augment == "rotation":
            return Compose((RandomCrop(4), RandomFlip(), RandomRotation(15), cifar_test())), None
        return cifar_train(), cifar_simclr() if augment == "paco" else None

    @property
    def test_view(self) -> Normalise:
        return digits_test() if self.config.name == "digits" else cifar_test()


def cifar_simclr() -> Compose:
    """SimCLR's view of CIFAR images: resized crop, flip, colour jitter, grey, blur."""
    return Compose(
        (
            RandomResizedCrop(32, scale=(0.2, 1.0)),
            RandomFlip(),
            ColorJitter(0.4, 0.4, 0.4, 0.1, p=0.8),
            RandomGrey(0.2),
            GaussianBlur((0.1, 2.0), p=0.5),
            cifar_test(),
        )
    )
