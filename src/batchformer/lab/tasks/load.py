"""What a task is, the task of a configuration, and remarks on its data."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, Protocol

import torch

from batchformer.lab.config.data import DataConfig
from batchformer.lab.config.training import TrainConfig
from batchformer.lab.data.files.file_lists import shorten
from batchformer.lab.engine.loop import Evaluation
from batchformer.lab.engine.method import Batches, Method
from batchformer.lab.engine.optimizer_step import OptimizerStep


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
    file, _, name = config.loader.partition(":")
    kind: Any = getattr(importlib.import_module(f"batchformer.lab.tasks.{file}"), name)
    task: Task = kind.load(config, device)
    return task


def remarks_in(facts: Mapping[str, Any]) -> list[str]:
    """Lines to read before training: remarks on the data, and words without a vector.

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
