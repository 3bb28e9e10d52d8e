"""The task of a configuration, and what a person reads of its data before training."""

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

# What a person should read of a task's facts before anything is trained; needs no torch.


def remarks_in(facts: Mapping[str, Any]) -> list[str]:
    """Remarks on the data, and words that have no vector of their own, each a line.

    Args:
        facts: of a task; those that it has no entries for give no lines.

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


# The task of a configuration, and what every task is.


class Task(Protocol):
    """Data, batches and scores of an experiment."""

    @property
    def num_classes(self) -> int: ...

    @property
    def method_options(self) -> dict[str, Any]:
        """What methods of this task are told of the data."""

    @property
    def unvalidated(self) -> str:
        """Why evaluations have no score of validation to choose by; empty where they have one."""

    def seeded(self, seed: int) -> Task:
        """The task of a run with this seed, where the data depends on it."""

    def facts(self) -> dict[str, Any]:
        """What a reader should know of the data, the same for every seed."""

    def draws(self) -> dict[str, str]:
        """What this seed drew of the data, if anything."""

    def feed(self, train: TrainConfig, seed: int) -> Batches:
        """Training batches."""

    def evaluate(self, method: Method, mechanics: OptimizerStep) -> Evaluation:
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
