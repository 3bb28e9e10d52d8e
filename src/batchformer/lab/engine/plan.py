"""What a training is told, and what it gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from batchformer.lab.config.training import OptimConfig, ScheduleConfig, TrainConfig
from batchformer.lab.engine.mechanics import Mechanics
from batchformer.lab.engine.method import Method


@dataclass(frozen=True)
class Evaluation:
    """What a task measures: scores by name, the headline first, and arrays for its figures.

    At the end of a training also what its method found that is no score, by the kind of its record,
    and the seconds that it took, in all its sittings.
    """

    metrics: dict[str, float]
    figures: dict[str, Any] = field(default_factory=dict)
    findings: dict[str, dict[str, float]] = field(default_factory=dict)
    seconds: float = field(default=0.0, compare=False)

    def instead_of(self, other: Evaluation, name: str) -> Evaluation:
        """This one, and after it the other, which lacks what is called ``name``.

        >>> Evaluation({"all": 3.0}).instead_of(Evaluation({"all": 2.0}), "swad").metrics
        {'all': 3.0, 'without_swad_all': 2.0}
        """
        without = f"without_{name}_"
        return Evaluation(
            {**self.metrics, **{without + key: value for key, value in other.metrics.items()}},
            {**self.figures, **{without + key: value for key, value in other.figures.items()}},
        )


Evaluate = Callable[[Method, Mechanics], Evaluation]

#: Number of the stage, and update in it, that a training has come to.
Position = tuple[int, int]

#: Folder of the network that is reported where that is not the last.
BEST = "best"


@dataclass(frozen=True)
class Plan:
    """How to train, where, and where to keep it.

    Args:
        on_start: called on every rank with the stage and the update that a training begins at, or
            resumes from, before its first update.
    """

    optim: OptimConfig
    schedule: ScheduleConfig
    train: TrainConfig
    seed: int
    folder: Path
    device: torch.device
    title: str = "run"
    quiet: bool = False
    wandb_project: str | None = None
    on_start: Callable[[str, int], None] | None = None
