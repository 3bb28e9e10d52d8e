"""Data for learning without labels; nothing here needs torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from batchformer.lab.config.images import LongTailConfig
from batchformer.lab.config.training import require


@dataclass(frozen=True, kw_only=True)
class ContrastConfig:
    """Images in two views, without their labels; labels serve to score what was learnt."""

    name: Literal["cifar10", "cifar100", "digits", "imagenet", "imagenet_lt", "folder"] = "cifar100"
    """Which images; "folder" is your own, in folders of classes or by lists."""
    ratio: float = 100.0
    """Images of the largest class over those of the smallest, where the tail is drawn here; 1: all
    images."""
    seed: int = 0
    """Of that draw; the same for all runs."""
    root: str | None = None
    """Folder or .npz file; by default $BATCHFORMER_DATA, else ~/.cache/batchformer."""
    train_list: str | None = None
    """Image files: list of the training images, `path label` a line or a .csv with these columns;
    paths start from data.root."""
    test_list: str | None = None
    """Image files: list of the test images."""
    size: int = 224
    """Image files: side of the squares they are cut to."""
    views: Literal["moco_v2", "byol"] = "moco_v2"
    """Two views alike, as MoCo-v2; or the first always blurred and the second rarely, but sometimes
    solarised, as BYOL and MoCo-v3. Images of CIFAR's size are not blurred; the digits are shifted.
    """

    def __post_init__(self) -> None:
        self.images()

    def images(self, **changes: Any) -> LongTailConfig:
        """The same images with their labels, as they are scored.

        Args:
            changes: other settings of theirs.
        """
        of_files = self.name in ("imagenet", "imagenet_lt", "folder")
        require(self.ratio >= 1, f"data.ratio is {self.ratio}, below 1")
        return LongTailConfig(
            **{
                "name": self.name,
                "ratio": self.ratio,
                "seed": self.seed,
                "root": self.root,
                "train_list": self.train_list,
                "test_list": self.test_list,
                "size": self.size,
                "augment": "resized" if of_files else "autoaugment",
                **changes,
            }
        )
