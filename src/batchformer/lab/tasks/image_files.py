"""Recognition on image files, long-tailed or not; workers read and the device augments."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from batchformer.insight.classes import Classes
from batchformer.insight.images import TestImages
from batchformer.lab.config.data import LongTailConfig
from batchformer.lab.config.training import TrainConfig
from batchformer.lab.data.feeds.evaluation_images import EvaluationImageFiles
from batchformer.lab.data.feeds.loader import FileFeed, evaluation_batches
from batchformer.lab.data.feeds.order import ClassBalanced, sampler_named
from batchformer.lab.data.files.image_files import ImageFiles
from batchformer.lab.data.sets.image_layouts import lists_of
from batchformer.lab.data.sets.long_tailed_files import (
    LongTailedFiles,
    annotated,
    imagenet,
    list_hash,
    own_files,
    with_at_most,
)
from batchformer.lab.engine.loop import Evaluation
from batchformer.lab.engine.method import Batches, Method
from batchformer.lab.engine.optimizer_step import OptimizerStep
from batchformer.lab.tasks.augmentation import file_views, view_at_test
from batchformer.lab.tasks.base import FixedSplit, WithMeta, file_feed
from batchformer.lab.tasks.features import Bank, with_feature_scores
from batchformer.lab.tasks.scoring import evaluate_by_shots, split_facts
from batchformer.nn.randomness import seed_for

#: Images in a test batch.
TEST_BATCH = 128


@dataclass(frozen=True)
class ImageFileTask(FixedSplit):
    """Data, batches and scores of one experiment on image files.

    Args:
        data: all parts.
        config: which data, its augmentation, and how classes are grouped into shots.
        device: where batches are made.
    """

    data: LongTailedFiles
    config: LongTailConfig
    device: torch.device

    @classmethod
    def load(cls, config: LongTailConfig, device: torch.device) -> ImageFileTask:
        """Read the lists and look for every image; an error says what is missing and where."""
        if config.name == "folder":
            data = own_files(config.root, config.train_list, config.test_list, config.seed)
        elif config.name == "imagenet":
            data = imagenet(config.root)
        else:
            named = (config.train_list, config.test_list)
            lists = lists_of(config.name, config.root, *named, config.scored_on)
            data = annotated(config.name, lists, with_val=config.meta_from == "val")
        data = with_at_most(data, config.per_class, config.seed)
        data.check_all()
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
        facts = {
            **split_facts(self.data),
            "classes": self.num_classes,
            "classes_without_test_image": len(self.data.untested),
        }
        if self.data.split_seed is not None:
            facts["split_seed"] = self.data.split_seed
        if self.data.val is not None:
            facts["val_sha256"] = list_hash(self.data.val)
        return {**facts, "remarks": list(self.data.remarks)} if self.data.remarks else facts

    def feed(self, train: TrainConfig, seed: int) -> Batches:
        """Augmented training batches, in the order of the configured sampler."""
        config, files = self.config, self.data.train
        first, second = file_views(config)
        sampler = sampler_named(config.sampler, files.labels, seed)
        feed = file_feed(files, first, train, seed, self.device, second=second, sampler=sampler)
        return WithMeta(feed, self._meta(train, seed)) if config.meta_batch else feed

    def _meta(self, train: TrainConfig, seed: int) -> FileFeed:
        """Class-balanced full batches: a smaller one would hold only some classes."""
        files: ImageFiles = self.data.val or self.data.train
        size = min(self.config.meta_batch, len(files))
        full = dataclasses.replace(train, batch_size=size, drop_last=True)
        return file_feed(
            files,
            file_views(self.config)[0],
            full,
            seed_for(seed, "augmentation", 1),
            self.device,
            sampler=ClassBalanced(files.labels, seed, stream=1),
        )

    def as_at_test(
        self, part: ImageFiles, workers: int | None, batch: int = TEST_BATCH
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """All images (N, 3, S, S) of a part, without randomness, and their labels.

        With several ranks, these are the images that this rank scores, and the labels of all.
        """
        view = view_at_test(self.config)
        for read in evaluation_batches(part, *view, batch, self.device, workers, sharded=True):
            yield read["x"], read["y"]

    def bank(self, seed: int, workers: int | None = None) -> Bank:
        """The training images that neighbours are searched among."""
        train = self.data.train
        return Bank(train.labels, seed, lambda: self.as_at_test(train, workers))

    def shown(self, workers: int | None = None) -> TestImages | None:
        """Test images, for figures."""
        data, view = self.data, view_at_test(self.config)
        classes = Classes.by_shots(data.classes, data.train_counts, self.config.shots)
        return EvaluationImageFiles(classes, data.test, view, self.device, workers)

    def evaluate(
        self, method: Method, optimizer_step: OptimizerStep, batch: int = TEST_BATCH
    ) -> Evaluation:
        """Scores in percent by shots, and what the figures need."""
        batches = self.as_at_test(self.data.test, optimizer_step.config.workers, batch)
        counts, classes = self.data.train_counts, self.data.classes
        found = evaluate_by_shots(method, optimizer_step, batches, counts, classes, self.config)
        test, workers = self.data.test, optimizer_step.config.workers
        again = self.as_at_test(test, workers, batch)
        return with_feature_scores(found, method, self.config, test, again, workers)
