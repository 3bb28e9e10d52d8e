"""Long-tailed recognition on images in memory: a skewed training part, a balanced test part."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from batchformer.data.cifar import cifar_lt
from batchformer.data.digits import digits_lt
from batchformer.data.feed import Feed
from batchformer.data.images import LongTailedData
from batchformer.data.samplers import ClassBalanced
from batchformer.data.transforms import cifar_test, digits_test
from batchformer.engine.config import TrainConfig
from batchformer.engine.fit import Evaluation
from batchformer.engine.mechanics import Mechanics
from batchformer.engine.method import Batches, Method
from batchformer.randomness import seed_for
from batchformer.tasks.augmentation import training_views
from batchformer.tasks.config import LongTailConfig
from batchformer.tasks.facts import split_facts
from batchformer.tasks.meta import WithMeta
from batchformer.tasks.scoring import evaluate_by_shots


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

    def facts(self) -> dict[str, Any]:
        """What a reader should know of the data, for the run folder."""
        return split_facts(self.data)

    def feed(self, train: TrainConfig, seed: int) -> Batches:
        """Augmented training batches, in the order of the configured sampler."""
        labels, config = self.data.train.y, self.config
        view, second = training_views(config)
        sampler = ClassBalanced(labels, seed) if config.sampler == "class_balanced" else None
        feed = Feed(
            self.data.train,
            view,
            train.batch_size,
            seed,
            train.drop_last,
            self.device,
            sampler,
            second=second,
        )
        if not config.meta_batch:
            return feed
        balanced = ClassBalanced(labels, seed, stream=1)
        size = min(config.meta_batch, len(labels))
        # Full batches only: the last one of an epoch would hold a part of the classes.
        other = seed_for(seed, "augmentation", 1)
        meta = Feed(self.data.train, view, size, other, True, self.device, balanced)
        return WithMeta(feed, meta)

    def evaluate(self, method: Method, mechanics: Mechanics, batch: int = 1000) -> Evaluation:
        """Scores in percent by shots, and what the figures need."""
        normalise = digits_test() if self.config.name == "digits" else cifar_test()
        test = self.data.test
        batches = (
            (normalise(x.to(self.device)), y.to(self.device))
            for x, y in zip(torch.split(test.x, batch), torch.split(test.y, batch), strict=True)
        )
        counts, classes = self.data.train_counts, self.data.classes
        return evaluate_by_shots(method, mechanics, batches, counts, classes, self.config)
