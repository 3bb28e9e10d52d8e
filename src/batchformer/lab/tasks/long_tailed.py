"""Long-tailed recognition on images in memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from batchformer.insight.classes import Classes
from batchformer.insight.images import TestImages
from batchformer.lab.config.data import LongTailConfig
from batchformer.lab.config.training import TrainConfig
from batchformer.lab.data.feeds.memory import Feed
from batchformer.lab.data.feeds.order import ClassBalanced, sampler_named
from batchformer.lab.data.feeds.sharding import scored_rows
from batchformer.lab.data.feeds.test_images import TestImagesInMemory
from batchformer.lab.data.sets.cifar import cifar_lt
from batchformer.lab.data.sets.digits import digits_lt
from batchformer.lab.data.sets.images import ImageSplit, LongTailedData
from batchformer.lab.data.transforms import cifar_test, digits_test
from batchformer.lab.data.transforms.base import Normalise
from batchformer.lab.engine.loop import Evaluation
from batchformer.lab.engine.method import Batches, Method
from batchformer.lab.engine.optimizer_step import OptimizerStep
from batchformer.lab.tasks.augmentation import training_views
from batchformer.lab.tasks.features import Bank, with_feature_scores
from batchformer.lab.tasks.meta import WithMeta
from batchformer.lab.tasks.scoring import evaluate_by_shots, split_facts
from batchformer.nn.randomness import seed_for

#: Images in a batch at test.
TEST_BATCH = 1000


@dataclass(frozen=True)
class LongTailedTask:
    """Data, batches and scores of one long-tailed experiment.

    Args:
        data: both parts.
        config: which data, and how classes are grouped into shots.
        device: where the images live.
    """

    data: LongTailedData
    config: LongTailConfig
    device: torch.device

    @classmethod
    def load(cls, config: LongTailConfig, device: torch.device) -> LongTailedTask:
        """Read the data; an error says what is missing and where it was looked for."""
        if config.name == "digits":
            return cls(digits_lt(config.ratio, config.seed), config, device)
        if config.name != "cifar10" and config.name != "cifar100":
            raise ValueError(f"{config.name} is read from image files, by ImageFileTask")
        root = None if config.root is None else Path(config.root).expanduser()
        data = cifar_lt(config.name, config.ratio, config.profile, root, config.seed)
        return cls(data, config, device)

    def seeded(self, seed: int) -> LongTailedTask:
        """Itself: every seed has the same data."""
        return self

    def draws(self) -> dict[str, str]:
        """Nothing: the split is the same for every seed."""
        return {}

    @property
    def method_options(self) -> dict[str, Any]:
        """What methods of this task are told of the data."""
        return {"class_counts": self.data.train_counts}

    @property
    def num_classes(self) -> int:
        return len(self.data.classes)

    @property
    def unvalidated(self) -> str:
        """Why evaluations have no score of validation to choose by."""
        return "this task has no validation data"

    def facts(self) -> dict[str, Any]:
        """What a reader should know of the data, for the run folder."""
        return split_facts(self.data)

    def feed(self, train: TrainConfig, seed: int) -> Batches:
        """Augmented training batches, in the order of the configured sampler."""
        labels, config = self.data.train.y, self.config
        view, second = training_views(config)
        sampler = sampler_named(config.sampler, labels, seed)
        feed = Feed(
            self.data.train,
            view,
            train.batch_size,
            seed,
            train.drop_last,
            self.device,
            sampler,
            second=second,
            accumulate=train.accumulate,
        )
        if not config.meta_batch:
            return feed
        balanced = ClassBalanced(labels, seed, stream=1)
        size = min(config.meta_batch, len(labels))
        # Full batches only: the last one of an epoch would hold a part of the classes.
        other = seed_for(seed, "augmentation", 1)
        parts = train.accumulate
        meta = Feed(
            self.data.train, view, size, other, True, self.device, balanced, accumulate=parts
        )
        return WithMeta(feed, meta)

    @property
    def _normalise(self) -> Normalise:
        return digits_test() if self.config.name == "digits" else cifar_test()

    def as_at_test(
        self, part: ImageSplit, batch: int = TEST_BATCH
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """All images (N, channels, H, W) of a part and their labels, nothing of them random.

        With several ranks, of the images those that this one scores.
        """
        normalise = self._normalise
        for x, y in zip(torch.split(part.x, batch), torch.split(part.y, batch), strict=True):
            yield normalise(x[scored_rows(len(x))].to(self.device)), y.to(self.device)

    def bank(self, seed: int, workers: int | None = None) -> Bank:
        """The training images that others are compared with."""
        train = self.data.train
        return Bank(train.y, seed, lambda: self.as_at_test(train))

    def shown(self, workers: int | None = None) -> TestImages | None:
        """Test images, for figures."""
        data = self.data
        classes = Classes.by_shots(data.classes, data.train_counts, self.config.shots)
        return TestImagesInMemory(classes, data.test, self._normalise, self.device)

    def evaluate(
        self, method: Method, mechanics: OptimizerStep, batch: int = TEST_BATCH
    ) -> Evaluation:
        """Scores in percent by shots, and what the figures need."""
        batches = self.as_at_test(self.data.test, batch)
        counts, classes = self.data.train_counts, self.data.classes
        found = evaluate_by_shots(method, mechanics, batches, counts, classes, self.config)
        test = self.data.test
        return with_feature_scores(found, method, self.config, test, self.as_at_test(test, batch))
