"""BatchFormer's settings inside a method; nothing here needs torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from batchformer.engine.config import require


@dataclass(frozen=True, kw_only=True)
class ModuleConfig:
    """BatchFormer and its place in the loss. The defaults are the paper's."""

    enabled: bool = True
    """Off: the baseline."""
    heads: int = 4
    """Attention heads."""
    layers: int = 1
    """Encoder layers."""
    dropout: float = 0.5
    """Dropout inside the encoder."""
    attend: Literal["batch", "self"] = "batch"
    """"self" masks attention to the diagonal: the control in which no sample sees another."""
    streams: Literal["shared", "mixed_only"] = "shared"
    """"mixed_only" trains the classifier on mixed features alone, the paper's ablation."""
    trained: bool = True
    """Off: the encoder keeps its random initial weights."""
    lr_factor: float = 0.1
    """Learning rate of the encoder as a multiple of the network's."""
    loss_scale: Literal["mean", "sum", "official"] = "mean"
    """"official" is the released code's, three times the paper's mean over 2N rows."""
    mixed_weight: float = 1.0
    """Weight of the mixed stream's loss."""

    def __post_init__(self) -> None:
        require(self.heads >= 1, f"module.heads is {self.heads}, below 1")
        require(self.layers >= 1, f"module.layers is {self.layers}, below 1")
        require(0 <= self.dropout <= 1, f"module.dropout is {self.dropout}, outside [0, 1]")
        require(self.lr_factor >= 0, f"module.lr-factor is {self.lr_factor}, below 0")
        require(self.mixed_weight >= 0, f"module.mixed-weight is {self.mixed_weight}, below 0")
