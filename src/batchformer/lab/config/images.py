"""Which data a task uses; nothing here needs torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from batchformer.lab.config.training import require

#: Data sets that are read from image files.
FILES = ("imagenet", "imagenet_lt", "inaturalist18", "places_lt", "folder")
#: Augmentations of image files.
OF_FILES = ("jitter", "resized", "paco", "simclr", "deit")


@dataclass(frozen=True, kw_only=True)
class LongTailConfig:
    """Long-tailed data."""

    name: Literal[
        "cifar10",
        "cifar100",
        "digits",
        "imagenet",
        "imagenet_lt",
        "inaturalist18",
        "places_lt",
        "folder",
    ] = "cifar100"
    """Which images; "folder" is your own, in folders of classes or by lists."""
    ratio: float = 100.0
    """Images of the largest class over those of the smallest, where the tail is drawn here."""
    profile: Literal["exponential", "step"] = "exponential"
    """How class sizes fall."""
    seed: int = 0
    """Of the draw; the same for all runs, so that arms and seeds share one training set."""
    root: str | None = None
    """Folder or .npz file; by default $BATCHFORMER_DATA, else ~/.cache/batchformer. Your own images
    lie in train/<class>/ and test/<class>/ (or val/<class>/) of it; or in <class>/ alone, and a
    fifth of each class is held out as the test set, drawn by data.seed."""
    train_list: str | None = None
    """Image files: list of the training images, `path label` a line or a .csv with these columns;
    paths start from data.root."""
    test_list: str | None = None
    """Image files: list of the test images."""
    per_class: int = 0
    """Image files: train on at most this many images of each class. They are the first of an order
    drawn by data.seed, so that a smaller set is contained in a larger one. 0: all images."""
    size: int = 224
    """Image files: side of the squares they are cut to; at test the middle of 8/7 of it."""
    scored_on: Literal["test", "val"] = "test"
    """imagenet_lt, places_lt: which of the published lists scores are measured on."""
    shots: Literal["counts", "thirds"] = "counts"
    """Many (> 100 training images), medium, few (< 20), or thirds of the classes by count."""
    augment: Literal[
        "autoaugment", "standard", "rotation", "paco", "jitter", "resized", "simclr", "deit"
    ] = "autoaugment"
    """CIFAR: AutoAugment and Cutout after crop and flip; standard crop and flip; crop, flip and
    rotation (RIDE). Image files: resized crop, flip and colour jitter; resized crop and flip; two
    views as SimCLR's; resized crop, flip, RandAugment and erasing (DeiT). Both: PaCo's two views,
    the second as SimCLR's. The digits have their own."""
    sampler: Literal["shuffle", "class_balanced", "repeated"] = "shuffle"
    """Every image once an epoch; every class equally often; or a third of the images three times
    (DeiT)."""
    scores: Literal["shots", "top", "both"] = "shots"
    """Accuracy by shots, the five highest answers (top1, top5), or both."""
    views: Literal["none", "moco_v2", "byol"] = "none"
    """Method knn: the two views of test images by which alignment is measured, beside uniformity
    and feature_std; those that the features were learnt from, as data.views there."""
    meta_batch: int = 0
    """Samples of a second, class-balanced batch in each update, for balms; 0 for none."""
    meta_from: Literal["train", "val"] = "train"
    """Where the second batch comes from; "val" is the third list of imagenet_lt and places_lt."""

    @property
    def of_files(self) -> bool:
        """Whether images are read from files as they are needed, rather than lie in memory."""
        return self.name in FILES

    def __post_init__(self) -> None:
        require(self.ratio >= 1, f"data.ratio is {self.ratio}, below 1")
        require(self.meta_batch >= 0, f"data.meta-batch is {self.meta_batch}, below 0")
        require(self.size >= 1, f"data.size is {self.size}, below 1")
        require(self.per_class >= 0, f"data.per-class is {self.per_class}, below 0")
        require(
            self.of_files or not self.per_class,
            f"data.per-class is for image files; {self.name} is shortened by data.ratio",
        )
        if self.name == "digits":
            require(self.root is None, "data.root is for files; the digits are embedded")
            require(self.profile == "exponential", "the digits have the exponential profile only")
            own = self.augment in ("autoaugment", "paco")
            require(own, "the digits have an augmentation of their own; leave data.augment")
        elif self.of_files:
            known = ", ".join(OF_FILES)
            right = self.augment in OF_FILES
            require(right, f"{self.name} has data.augment {known}, not {self.augment}")
        else:
            right = self.augment not in ("jitter", "resized", "simclr", "deit")
            require(right, f"data.augment {self.augment} is for image files, not {self.name}")
            lists = self.train_list is None and self.test_list is None
            require(lists, f"{self.name} has no lists; data.train-list is for image files")
        lists = self.train_list is None and self.test_list is None
        require(lists or self.name != "imagenet", "imagenet has no lists; use the name folder")
        third = self.name in ("imagenet_lt", "places_lt")
        val = "val" in (self.scored_on, self.meta_from)
        require(third or not val, f"{self.name} has no third list, so val means nothing here")
