"""Which data a task uses; nothing here needs torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from batchformer.engine.config import require


@dataclass(frozen=True, kw_only=True)
class LongTailConfig:
    """Long-tailed data."""

    name: Literal["cifar10", "cifar100", "digits"] = "cifar100"
    """Which images."""
    ratio: float = 100.0
    """Images of the largest class over those of the smallest."""
    profile: Literal["exponential", "step"] = "exponential"
    """How class sizes fall."""
    seed: int = 0
    """Of the draw; the same for all runs, so that arms and seeds share one training set."""
    root: str | None = None
    """Folder or .npz file; by default $BATCHFORMER_DATA, else ~/.cache/batchformer."""
    shots: Literal["counts", "thirds"] = "counts"
    """Many (> 100 training images), medium, few (< 20), or thirds of the classes by count."""
    augment: Literal["autoaugment", "standard", "rotation", "paco"] = "autoaugment"
    """AutoAugment and Cutout after crop and flip; crop and flip; crop, flip and rotation (RIDE);
    or AutoAugment and Cutout with a second view as SimCLR's (PaCo). The digits have their own."""
    sampler: Literal["shuffle", "class_balanced"] = "shuffle"
    """Every image once an epoch, or every class equally often."""
    meta_batch: int = 0
    """Samples of a second, class-balanced batch in each update, for balms; 0 for none."""

    def __post_init__(self) -> None:
        require(self.ratio >= 1, f"data.ratio is {self.ratio}, below 1")
        require(self.meta_batch >= 0, f"data.meta-batch is {self.meta_batch}, below 0")
        if self.name == "digits":
            require(self.root is None, "data.root is for files; the digits are embedded")
            require(self.profile == "exponential", "the digits have the exponential profile only")
            own = self.augment in ("autoaugment", "paco")
            require(own, "the digits have an augmentation of their own; leave data.augment")
