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
from batchformer.insight.images import TestImages
from batchformer.lab.config.data import LongTailConfig
from batchformer.lab.config.training import TrainConfig
from batchformer.lab.data.feeds.evaluation_images import EvaluationImages
from batchformer.lab.data.feeds.order import ClassBalanced, sampler_named
from batchformer.lab.data.sets.cifar import cifar_lt
from batchformer.lab.data.sets.digits import digits_lt
from batchformer.lab.data.sets.images import ImageSplit, LongTailedData
from batchformer.lab.data.transforms import cifar_test, digits_test
from batchformer.lab.data.transforms.base import Normalise
from batchformer.lab.engine.loop import Evaluation
from batchformer.lab.engine.method import Batches, Method
from batchformer.lab.engine.optimizer_step import OptimizerStep
from batchformer.lab.tasks.augmentation import training_views
from batchformer.lab.tasks.base import FixedSplit, WithMeta, memory_feed, scored_batches
from batchformer.lab.tasks.features import Bank, with_feature_scores
from batchformer.lab.tasks.scoring import evaluate_by_shots, split_facts
from batchformer.nn.randomness import seed_for

#: Images in a test batch.
TEST_BATCH = 1000


@dataclass(frozen=True)
class LongTailedTask(FixedSplit):
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
            raise ValueError(f"ImageFileTask loads {config.name}, which is in image files")
        root = None if config.root is None else Path(config.root).expanduser()
        data = cifar_lt(config.name, config.ratio, config.profile, root, config.seed)
        return cls(data, config, device)

    @property
    def method_options(self) -> dict[str, Any]:
        """What the task tells its methods about the data."""
        return {"class_counts": self.data.train_counts}

    @property
    def num_classes(self) -> int:
        return len(self.data.classes)

    def facts(self) -> dict[str, Any]:
        """What a reader should know about the data, for the run folder."""
        return split_facts(self.data)

    def feed(self, train: TrainConfig, seed: int) -> Batches:
        """Augmented training batches, in the order of the configured sampler."""
        part, config = self.data.train, self.config
        view, second = training_views(config)
        sampler = sampler_named(config.sampler, part.y, seed)
        feed = memory_feed(part, view, train, seed, self.device, second=second, sampler=sampler)
        if not config.meta_batch:
            return feed
        # Full batches only: the last one of an epoch would hold only some classes.
        size = min(config.meta_batch, len(part))
        full = dataclasses.replace(train, batch_size=size, drop_last=True)
        balanced = ClassBalanced(part.y, seed, stream=1)
        other = seed_for(seed, "augmentation", 1)
        return WithMeta(feed, memory_feed(part, view, full, other, self.device, sampler=balanced))

    @property
    def _normalise(self) -> Normalise:
        return digits_test() if self.config.name == "digits" else cifar_test()

    def as_at_test(
        self, part: ImageSplit, workers: int | None = None, batch: int = TEST_BATCH
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """All images (N, channels, H, W) of a part, without randomness, and their labels.

        With several ranks, these are the images that this rank scores, and the labels of all.
        """
        for x, y in scored_batches(part, self._normalise, batch, self.device):
            yield x, y.to(self.device)

    def bank(self, seed: int, workers: int | None = None) -> Bank:
        """The training images that neighbours are searched among."""
        train = self.data.train
        return Bank(train.y, seed, lambda: self.as_at_test(train))

    def shown(self, workers: int | None = None) -> TestImages | None:
        """Test images, for figures."""
        data = self.data
        classes = Classes.by_shots(data.classes, data.train_counts, self.config.shots)
        return EvaluationImages(classes, data.test, self._normalise, self.device)

    def evaluate(
        self, method: Method, optimizer_step: OptimizerStep, batch: int = TEST_BATCH
    ) -> Evaluation:
        """Scores in percent by shots, and what the figures need."""
        batches = self.as_at_test(self.data.test, batch=batch)
        counts, classes = self.data.train_counts, self.data.classes
        found = evaluate_by_shots(method, optimizer_step, batches, counts, classes, self.config)
        test = self.data.test
        again = self.as_at_test(test, batch=batch)
        return with_feature_scores(found, method, self.config, test, again)
