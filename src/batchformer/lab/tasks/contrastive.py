"""Learning without labels, from two views of every image; labels only score the features."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from batchformer.insight.classes import shot_groups
from batchformer.lab.config.data import ContrastConfig
from batchformer.lab.config.methods import MethodConfig
from batchformer.lab.config.training import TrainConfig
from batchformer.lab.data.feeds.sharding import all_rows
from batchformer.lab.engine.method import Batches, Method
from batchformer.lab.engine.optimizer_step import OptimizerStep
from batchformer.lab.engine.state import Evaluation
from batchformer.lab.metrics.representation import votes
from batchformer.lab.metrics.shots import LongTailedMetrics
from batchformer.lab.tasks.base import FixedSplit, class_figures
from batchformer.lab.tasks.features import feature_scores, two_views
from batchformer.lab.tasks.image_files import ImageFileTask
from batchformer.lab.tasks.long_tailed import LongTailedTask


@dataclass(frozen=True)
class ContrastiveTask(FixedSplit):
    """Pairs of views, and scores of the features that are learnt from them."""

    labelled: LongTailedTask | ImageFileTask
    config: ContrastConfig
    seed: int = 0

    @classmethod
    def load(cls, config: ContrastConfig, device: torch.device) -> ContrastiveTask:
        images = config.images()
        kind = ImageFileTask if images.of_files else LongTailedTask
        return cls(kind.load(images, device), config)

    @property
    def device(self) -> torch.device:
        return self.labelled.device

    @property
    def num_classes(self) -> int:
        return self.labelled.num_classes

    @property
    def method_options(self) -> dict[str, Any]:
        """Nothing: methods of this task learn without labels."""
        return {}

    def seeded(self, seed: int) -> ContrastiveTask:
        """The same images; the seed draws the ones among which neighbours are searched."""
        return replace(self, seed=seed)

    def facts(self) -> dict[str, Any]:
        """The facts of the labelled task, so that its probes accept networks trained here."""
        return self.labelled.facts()

    def feed(self, train: TrainConfig, seed: int) -> Batches:
        """Shuffled batches with two views of each image, ``x`` and ``view2``."""
        return two_views(self.config, self.labelled.data.train, seed, train, self.device)

    def evaluate(self, method: Method, optimizer_step: OptimizerStep) -> Evaluation:
        """Accuracy in percent of nearest neighbours, and what the features look like.

        Neighbours are searched among as many draws as there are training images, each class equally
        often. If all classes are many-shot, medium or few-shot alike, scores by shots are left out.
        """

        def extract(images: Tensor) -> Tensor:
            with optimizer_step.autocast():
                return method.predict(images).float()

        workers = optimizer_step.config.workers
        hyper = getattr(method, "hyper", None) or MethodConfig()
        bank, labels = self.labelled.bank(self.seed, workers)(extract)
        test: Any = self.labelled.data.test
        batches = self.labelled.as_at_test(test, workers)
        parts = [(all_rows(extract(x), len(y)), y) for x, y in batches]
        features, targets = (torch.cat(each) for each in zip(*parts, strict=True))
        counts, classes = self.labelled.data.train_counts, self.labelled.data.classes
        groups = {name: mask for name, mask in shot_groups(counts).items() if bool(mask.any())}
        scores = LongTailedMetrics(len(classes), groups if len(groups) > 1 else {})
        found = votes(
            features, bank, labels, len(classes), hyper.neighbours, hyper.vote_temperature
        )
        scores.update(found, targets)
        by_shots = scores.compute()
        metrics = {
            "knn": by_shots["all"],
            **{f"knn_{name}": by_shots[name] for name in groups if name in by_shots},
            **feature_scores(extract, features, self.config, self.labelled.data.test, workers),
        }
        figures = class_figures(scores, counts, classes)
        return Evaluation({**metrics, **method.further_scores()}, figures)
