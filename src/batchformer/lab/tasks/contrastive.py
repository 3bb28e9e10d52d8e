"""Learning without labels: two views of every image; labels serve to score the features."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from batchformer.insight.classes import shot_groups
from batchformer.lab.config.data import ContrastConfig
from batchformer.lab.config.methods import MethodConfig
from batchformer.lab.config.training import TrainConfig
from batchformer.lab.data.feeds.sharding import all_rows
from batchformer.lab.engine.loop import Evaluation
from batchformer.lab.engine.method import Batches, Method
from batchformer.lab.engine.optimizer_step import OptimizerStep
from batchformer.lab.metrics.representation import votes
from batchformer.lab.metrics.shots import LongTailedMetrics
from batchformer.lab.tasks.features import feature_scores, two_views
from batchformer.lab.tasks.image_files import ImageFileTask
from batchformer.lab.tasks.long_tailed import LongTailedTask
from batchformer.lab.tasks.scoring import MOST_CLASSES_WITH_CONFUSION


@dataclass(frozen=True)
class ContrastiveTask:
    """Pairs of views, and scores of the features that are learnt from them.

    Args:
        labelled: the same images as a task with labels.
        config: which images, and which views of them.
        seed: of the run; 0 until it is known.
    """

    labelled: LongTailedTask | ImageFileTask
    config: ContrastConfig
    seed: int = 0

    @classmethod
    def load(cls, config: ContrastConfig, device: torch.device) -> ContrastiveTask:
        """Read the data; an error says what is missing and where it was looked for."""
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
        """The same images; the seed draws those that neighbours are sought among."""
        return replace(self, seed=seed)

    @property
    def unvalidated(self) -> str:
        """Why evaluations have no score of validation to choose by."""
        return self.labelled.unvalidated

    def facts(self) -> dict[str, Any]:
        """Those of the images with labels, so that what is learnt here can be probed there."""
        return self.labelled.facts()

    def draws(self) -> dict[str, str]:
        """Nothing: the split is the same for every seed."""
        return {}

    def feed(self, train: TrainConfig, seed: int) -> Batches:
        """Shuffled batches with two views of each image, ``x`` and ``view2``."""
        return two_views(self.config, self.labelled.data.train, seed, train, self.device)

    def evaluate(self, method: Method, mechanics: OptimizerStep) -> Evaluation:
        """Accuracy in percent of nearest neighbours, and what the features look like.

        Neighbours are sought among as many training images as there are, every class equally often.
        Without a difference between many, medium and few shots, these are left out.
        """

        def extract(images: Tensor) -> Tensor:
            with mechanics.autocast():
                return method.predict(images).float()

        workers, hyper = mechanics.config.workers, _settings(method)
        bank, labels = self.labelled.bank(self.seed, workers)(extract)
        parts = [(all_rows(extract(x), len(y)), y) for x, y in self._test(workers)]
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
        figures: dict[str, Any] = {
            "per_class": scores.per_class.numpy(),
            "train_counts": counts.numpy(),
            "correct": (found.argmax(1) == targets).cpu().numpy(),
            "classes": np.array(classes),
        }
        if len(classes) <= MOST_CLASSES_WITH_CONFUSION:
            figures["confusion"] = scores.confusion.to(torch.int32).cpu().numpy()
        return Evaluation({**metrics, **method.remarks()}, figures)

    def _test(self, workers: int | None) -> Iterable[tuple[Tensor, Tensor]]:
        task = self.labelled
        if isinstance(task, ImageFileTask):
            return task.as_at_test(task.data.test, workers)
        return task.as_at_test(task.data.test)


def _settings(method: Method) -> MethodConfig:
    """The method's own, of which the neighbours' are read; else the usual ones."""
    found = getattr(method, "hyper", None)
    return found if isinstance(found, MethodConfig) else MethodConfig()
