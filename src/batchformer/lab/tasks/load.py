"""What a task is, the task of a configuration, and remarks on its data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch

from batchformer.lab.config.data import (
    ContrastConfig,
    DataConfig,
    DetectionConfig,
    DomainConfig,
    FeatureConfig,
    PairConfig,
)
from batchformer.lab.config.training import TrainConfig
from batchformer.lab.data.files.file_lists import shorten
from batchformer.lab.engine.loop import Evaluation
from batchformer.lab.engine.method import Batches, Method
from batchformer.lab.engine.optimizer_step import OptimizerStep
from batchformer.lab.tasks.domains import DomainTask
from batchformer.lab.tasks.image_files import ImageFileTask
from batchformer.lab.tasks.long_tailed import LongTailedTask


class Task(Protocol):
    """Data, batches and scores of an experiment."""

    @property
    def num_classes(self) -> int: ...

    @property
    def method_options(self) -> dict[str, Any]:
        """What the task tells its methods about the data."""

    @property
    def unvalidated(self) -> str:
        """Why evaluations have no validation score to choose by; empty if they have one."""

    def seeded(self, seed: int) -> Task:
        """The task of a run with this seed, if the data depends on the seed."""

    def facts(self) -> dict[str, Any]:
        """What a reader should know about the data, the same for every seed."""

    def draws(self) -> dict[str, str]:
        """What this seed drew in the data, if anything."""

    def feed(self, train: TrainConfig, seed: int) -> Batches:
        """Training batches."""

    def evaluate(self, method: Method, optimizer_step: OptimizerStep) -> Evaluation:
        """Scores in percent, the headline first, and what the figures need."""


def load(config: DataConfig, device: torch.device) -> Task:
    """Read the data; an error says what is missing and where it was looked for."""
    if isinstance(config, DomainConfig):
        return DomainTask.load(config, device)
    if isinstance(config, PairConfig):
        from batchformer.lab.tasks.compositional import CompositionalTask

        return CompositionalTask.load(config, device)
    if isinstance(config, FeatureConfig):
        from batchformer.lab.tasks.generalized import GeneralizedTask

        return GeneralizedTask.load(config, device)
    if isinstance(config, ContrastConfig):
        from batchformer.lab.tasks.contrastive import ContrastiveTask

        return ContrastiveTask.load(config, device)
    if isinstance(config, DetectionConfig):
        from batchformer.lab.tasks.detection import DetectionTask

        return DetectionTask.load(config, device)
    if config.of_files:
        return ImageFileTask.load(config, device)
    return LongTailedTask.load(config, device)


def remarks_in(facts: Mapping[str, Any]) -> list[str]:
    """Lines to read before training: remarks on the data, and words without a vector.

    Args:
        facts: of a task.

    >>> remarks_in({"train": 9, "remarks": ["no pair is unseen"], "random_vectors": ["cat", "dog"]})
    ['no pair is unseen', 'no word vector, and a random one drawn: cat, dog']
    """
    lines = list(facts.get("remarks", ()))
    if parts := facts.get("words_without_vector"):
        names = [f"{name} ({', '.join(lacking)})" for name, lacking in parts.items()]
        lines.append(f"parts without a word vector, left out of the mean: {shorten(names)}")
    if drawn := facts.get("random_vectors"):
        lines.append(f"no word vector, and a random one drawn: {shorten(drawn)}")
    return lines
