"""Generalized zero-shot learning on features: train on seen classes, recognise all classes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from batchformer.lab.config.data import FeatureConfig
from batchformer.lab.config.training import TrainConfig
from batchformer.lab.data.feeds.memory import FeatureFeed
from batchformer.lab.data.feeds.sharding import all_rows, scored_rows
from batchformer.lab.data.sets.attributes import AttributeFeatures, load_attribute_features
from batchformer.lab.engine.method import Batches, Method
from batchformer.lab.engine.optimizer_step import OptimizerStep
from batchformer.lab.engine.state import Evaluation
from batchformer.lab.metrics.generalized import generalized_accuracy, seen_unseen_curve
from batchformer.lab.metrics.shots import LongTailedMetrics
from batchformer.lab.tasks.base import FixedSplit

#: Rows in a scored batch.
SCORED_BATCH = 2048


@dataclass(frozen=True)
class GeneralizedTask(FixedSplit):
    """Data, batches and scores of one experiment."""

    data: AttributeFeatures
    config: FeatureConfig
    device: torch.device

    @classmethod
    def load(cls, config: FeatureConfig, device: torch.device) -> GeneralizedTask:
        data = load_attribute_features(config.name, config.root)
        if config.unseen == "val" or config.choose:
            held_out = data.for_selection()  # refuses data without validation classes
            data = held_out if config.unseen == "val" else data
        return cls(data, config, device)

    @property
    def num_classes(self) -> int:
        return len(self.data.classes)

    @cached_property
    def method_options(self) -> dict[str, Any]:
        data = self.data
        return {
            "features": data.scaled(data.trainval),
            "labels": data.labels[data.trainval],
            "attributes": data.attributes,
            "seen": data.seen,
            "unseen": data.unseen,
        }

    def facts(self) -> dict[str, Any]:
        data = self.data
        return {
            "name": data.name,
            "split_sha256": data.split_sha256,
            "train": len(data.trainval),
            "test_seen": len(data.test_seen),
            "test_unseen": len(data.test_unseen),
            "seen_classes": len(data.seen),
            "unseen_classes": len(data.unseen),
            "features": data.features.shape[1],
            "attributes": data.attributes.shape[1],
        }

    def feed(self, train: TrainConfig, seed: int) -> Batches:
        """Random batches of training features, several of them for each update."""
        features, labels = (self.method_options[name] for name in ("features", "labels"))
        times = self.config.batches
        return FeatureFeed(features, labels, train.batch_size, seed, self.device, times)

    def evaluate(self, method: Method, optimizer_step: OptimizerStep) -> Evaluation:
        """The harmonic mean first, then the accuracies of unseen and of seen classes, then the area
        under their curve, which does not depend on the balance between the two."""
        data = self.data
        rows = torch.cat((data.test_seen, data.test_unseen))
        scored = []
        for part in torch.split(data.scaled(rows), SCORED_BATCH):
            own = part[scored_rows(len(part))].to(self.device)
            with optimizer_step.autocast():
                scored.append(all_rows(method.predict(own).float(), len(part)).cpu())
        scores, truth = torch.cat(scored), data.labels[rows]
        answers = LongTailedMetrics(self.num_classes, {})
        answers.update(scores, truth)
        curve = seen_unseen_curve(scores, truth, data.unseen)
        figures = {
            "correct": answers.correct.numpy(),
            "bias_of": np.array("classes"),
            "bias_seen": curve.seen.numpy(),
            "bias_unseen": curve.unseen.numpy(),
        }
        metrics = {**generalized_accuracy(answers.per_class, data.unseen), "auc": curve.auc}
        return Evaluation({**metrics, **method.further_scores()}, figures)
