"""Images with boxes; nothing here needs torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from batchformer.lab.config.training import require


@dataclass(frozen=True, kw_only=True)
class DetectionConfig:
    """Images with boxes, in the folders of Pascal VOC."""

    name: Literal["voc"] = "voc"
    """Layout of the folders."""
    root: str | None = None
    """Folder VOCdevkit, with VOC2007 and others in it; by default in $BATCHFORMER_DATA, else
    ~/.cache/batchformer."""
    trained_on: tuple[str, ...] = ("2007/trainval", "2012/trainval")
    """Year and list of images, VOC<year>/ImageSets/Main/<list>.txt."""
    scored_on: tuple[str, ...] = ("2007/test",)
    """The same of the images that scores are measured on."""
    shorter: tuple[int, ...] = tuple(range(480, 801, 32))
    """Lengths of the shorter side in training, one drawn for each image."""
    shorter_at_test: int = 800
    """Length of the shorter side at test."""
    longest: int = 1333
    """Largest length of the longer side."""
    difficult: bool = True
    """Train on objects that are marked as difficult; they are never scored."""

    precise_norm: int = 0
    """Training batches over which statistics of normalisation are measured anew before every
    scoring, the weights left as they are (detectron2's precise-BN); 0: running means."""

    def __post_init__(self) -> None:
        require(self.precise_norm >= 0, f"data.precise-norm is {self.precise_norm}, below 0")
        require(bool(self.trained_on) and bool(self.scored_on), "data names no list of images")
        for name in (*self.trained_on, *self.scored_on):
            right = len(name.split("/")) == 2 and all(name.split("/"))
            require(right, f"{name!r} is no list of images; write it as 2007/trainval")
        sides = (*self.shorter, self.shorter_at_test)
        require(bool(self.shorter) and min(sides) >= 1, "data.shorter has no length of a side")
        require(self.longest >= max(sides), f"data.longest is {self.longest}, below data.shorter")
