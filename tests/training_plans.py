"""Plans of short, quiet trainings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from batchformer.lab.config.training import OptimConfig, ScheduleConfig, TrainConfig
from batchformer.lab.engine.stage import Plan


def quiet_plan(
    folder: Path,
    optim: OptimConfig,
    schedule: ScheduleConfig,
    seed: int = 3,
    device: str = "cpu",
    **train: Any,
) -> Plan:
    """A plan with these settings of the training; `train` are fields of ``TrainConfig``."""
    where = torch.device(device)
    return Plan(optim, schedule, TrainConfig(**train), seed, folder, where, quiet=True)
