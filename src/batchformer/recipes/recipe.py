"""A recipe: the complete, typed configuration of one experiment; nothing here needs torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from batchformer.engine.config import OptimConfig, ScheduleConfig, TrainConfig
from batchformer.methods.config import ModuleConfig
from batchformer.tasks.config import LongTailConfig


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One experiment of the paper, or of ours."""

    name: str
    """What the command line calls it."""
    summary: str
    """One line for the list."""
    table: str
    """Table and row of the paper."""
    task: Literal["long_tailed"]
    """Family of experiments."""
    data: LongTailConfig = field(default_factory=LongTailConfig)
    """Data."""
    model: str = "resnet32"
    """Network: resnet32 (CIFAR), digits_net, or any of timm's."""
    method: Literal["cross_entropy", "balanced_softmax"] = "balanced_softmax"
    """Method."""
    module: ModuleConfig = field(default_factory=ModuleConfig)
    """BatchFormer."""
    optim: OptimConfig = field(default_factory=OptimConfig)
    """Optimizer."""
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    """Learning rate over time."""
    train: TrainConfig = field(default_factory=TrainConfig)
    """Length and mechanics."""
    paper: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """The paper's numbers: arm, then metric."""
