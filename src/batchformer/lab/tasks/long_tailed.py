"""Long-tailed recognition on images in memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from batchformer.insight.classes import Classes
from batchformer.insight.images import LabelledImages
from batchformer.lab.config.data import LongTailConfig
from batchformer.lab.config.training import TrainConfig
from batchformer.lab.data.feeds.memory import EvaluationImages
from batchformer.lab.data.feeds.samplers import ClassBalanced, ReversedClasses, sampler_named
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
from batchformer.lab.engine.method import Batches
from batchformer.lab.tasks.base import (
    LabelledTask,
    memory_feed,
    scored_batches,
    split_facts,
    with_second,
)
from batchformer.nn.randomness import seed_for

#: Images in a test batch.
TEST_BATCH = 1000


@dataclass(frozen=True)
class LongTailedTask(LabelledTask):
    """Data, batches and scores of one long-tailed experiment."""

    data: LongTailedData
    config: LongTailConfig
    device: torch.device

    @classmethod
    def load(cls, config: LongTailConfig, device: torch.device) -> LongTailedTask:
        """Read the data; an error says what is missing and where it was looked for."""
        bounds = (config.min_images, config.max_images)
        if config.name == "digits":
            digits = digits_lt(config.ratio, config.seed)
            return cls(only_classes(digits, *bounds), config, device)
        if config.name != "cifar10" and config.name != "cifar100":
            raise ValueError(f"ImageFileTask loads {config.name}, which is in image files")
        from batchformer.lab.data.sets.cifar import cifar_lt  # late: the digits are embedded

        root = None if config.root is None else Path(config.root).expanduser()
        data = cifar_lt(config.name, config.ratio, config.profile, root, config.seed)
        return cls(only_classes(data, *bounds), config, device)

    def facts(self) -> dict[str, Any]:
        return split_facts(self.data)

    def feed(self, train: TrainConfig, seed: int) -> Batches:
        """Augmented training batches, in the order of the configured sampler."""
        part, config = self.data.train, self.config
        view, second = training_views(config)
        sampler = sampler_named(config.sampler, part.y, seed, config.per_turn)
        feed = memory_feed(part, view, train, seed, self.device, second=second, sampler=sampler)
        other = seed_for(seed, "augmentation", 1)
        if config.paired == "reversed":
            rare = ReversedClasses(part.y, seed, stream=1)
            pairs = memory_feed(part, view, train, other, self.device, sampler=rare)
            return with_second(feed, pairs, "paired")
        if not config.meta_batch:
            return feed
        # Full batches only: the last one of an epoch would hold only some classes.
        size = min(config.meta_batch, len(part))
        full = dataclasses.replace(train, batch_size=size, drop_last=True)
        balanced = ClassBalanced(part.y, seed, stream=1)
        meta = memory_feed(part, view, full, other, self.device, sampler=balanced)
        return with_second(feed, meta, "meta")

    @property
    def _normalise(self) -> Normalise:
        return digits_test() if self.config.name == "digits" else cifar_test()

    @property
    def train_labels(self) -> Tensor:
        return self.data.train.y

    def as_at_test(
        self, part: ImageSplit, workers: int | None = None, batch: int = 0
    ) -> Iterator[tuple[Tensor, Tensor]]:
        for x, y in scored_batches(part, self._normalise, batch or TEST_BATCH, self.device):
            yield x, y.to(self.device)

    def shown(self, workers: int | None = None) -> LabelledImages | None:
        """Test images, for figures."""
        data = self.data
        classes = Classes.by_shots(data.classes, data.train_counts, self.config.shots)
        return EvaluationImages(classes, data.test, self._normalise, self.device)


# Augmentation, by the name a configuration gives it


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
