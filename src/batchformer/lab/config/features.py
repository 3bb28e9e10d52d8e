"""Which features of generalized zero-shot learning a task uses; nothing here needs torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from batchformer.lab.config.training import require


@dataclass(frozen=True, kw_only=True)
class FeatureConfig:
    """Features of images, and attributes of classes, some of which are never trained on."""

    name: Literal["cub", "awa1", "awa2", "sun", "apy", "flo", "npz"] = "cub"
    """Which features: the benchmark's .mat files, or an .npz of the same arrays."""
    root: str | None = None
    """Folder of the set, by default in $BATCHFORMER_DATA, else in ~/.cache/batchformer; or the .npz
    itself."""
    unseen: Literal["test", "val"] = "test"
    """Which classes are left out: those of the test, or those of validation, without the test's."""
    choose: bool = True
    """Train twice: with the classes of validation left out, and then on all seen ones; the epoch
    that was best in the first is reported of the second."""

    batches: int = 5
    """Random batches of an update, one for each step of a critic."""

    @property
    def of_files(self) -> bool:
        """Features are read from a file."""
        return True

    def __post_init__(self) -> None:
        require(self.batches >= 1, f"data.batches is {self.batches}, below 1")
        both = self.unseen == "val" and self.choose
        require(not both, "data.choose trains with the classes of validation unseen by itself")
