"""What a training is told, and what it gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from batchformer.engine.config import OptimConfig, ScheduleConfig, TrainConfig
from batchformer.engine.mechanics import Mechanics
from batchformer.engine.method import Method


@dataclass(frozen=True)
class Evaluation:
    """What a task measures: scores by name, the headline first, and arrays for its figures."""

    metrics: dict[str, float]
    figures: dict[str, Any] = field(default_factory=dict)


Evaluate = Callable[[Method, Mechanics], Evaluation]

#: Folder of the network that is reported where that is not the last.
BEST = "best"


@dataclass(frozen=True)
class Plan:
    """How to train, where, and where to keep it."""

    optim: OptimConfig
    schedule: ScheduleConfig
    train: TrainConfig
    seed: int
    folder: Path
    device: torch.device
    title: str = "run"
    quiet: bool = False
    wandb_project: str | None = None
