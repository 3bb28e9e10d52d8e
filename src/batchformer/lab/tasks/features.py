"""Features of images: a bank of training features, two views, and scores of features."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from batchformer.lab.config.data import ContrastConfig, LongTailConfig
from batchformer.lab.config.training import TrainConfig
from batchformer.lab.data.feeds import framing
from batchformer.lab.data.feeds.loader import FileFeed, View
from batchformer.lab.data.feeds.memory import Feed, close
from batchformer.lab.data.feeds.samplers import ClassBalanced
from batchformer.lab.data.feeds.sharding import all_rows
from batchformer.lab.data.files.image_files import ImageFiles
from batchformer.lab.data.sets.images import ImageSplit
from batchformer.lab.data.transforms import (
    CONTRAST_SCALE,
    Compose,
    RandomResizedCrop,
    Transform,
    byol,
    cifar_test,
    digits_train,
    moco_v2,
)
from batchformer.lab.metrics.representation import alignment, feature_std, uniformity
from batchformer.lab.tasks.base import file_feed, memory_feed
from batchformer.lab.tasks.image_files import normalise_files
from batchformer.nn.exchange import as_single_rank

#: Classes count as balanced if the largest has fewer than this many times the smallest's images.
BALANCED_WITHIN = 2
#: Random stream of the bank's draw, different from those of training batches.
STREAM = 2
#: Side of CIFAR's images.
SMALL = 32
#: Test images whose two views are compared, and the size of their batches.
ALIGNED, ALIGNED_BATCH = 1024, 128

Extract = Callable[[Tensor], Tensor]
#: Data with two views of each image, or labelled data that names views.
Viewed = ContrastConfig | LongTailConfig


@dataclass(frozen=True, eq=False)
class Bank:
    """Training images without augmentation, drawn so that each class is equally frequent.

    In a long-tailed bank neighbours would vote for the largest classes, however good the features.
    If classes are balanced within a factor of two, every image is in the bank once. Otherwise an
    image of a small class is in it many times, and votes as often: the smallest class of
    CIFAR-100-LT has five images and each class 108 draws, so each of the five is in it about 21
    times, and 200 neighbours are some ten different images there.

    Args:
        labels: (M,) classes of the training images.
        seed: of the draw.
        batches: gives all training images in order, normalised and on the device, and their labels;
            with several ranks, the images that this rank scores.
        validation: the images of a third list, for methods that choose something by them.
    """

    labels: Tensor
    seed: int
    batches: Callable[[], Iterable[tuple[Tensor, Tensor]]]
    validation: Bank | None = None

    @property
    def rows(self) -> Tensor:
        """(M,) the training images in the bank; those of small classes several times."""
        counts = self.labels.bincount()
        counts = counts[counts > 0]
        if int(counts.max()) < BALANCED_WITHIN * int(counts.min()):
            return torch.arange(len(self.labels))
        return ClassBalanced(self.labels, self.seed, STREAM).order(0)

    def __call__(self, extract: Extract) -> tuple[Tensor, Tensor]:
        """Features (M, C) and labels (M,), on the device of the features.

        Args:
            extract: makes features (N, C) of images (N, channels, H, W).
        """
        # Each image once: repeating its features is cheaper than repeating the image.
        found = self.features(extract)
        rows = self.rows.to(found.device)
        return found[rows], self.labels.to(found.device)[rows]

    def features(self, extract: Extract) -> Tensor:
        """Features (M, C) of all training images, each once and in order."""
        return self.measure(extract, lambda found, _: found)

    def measure(self, extract: Extract, score: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """Scores (M, ...) of all training images, each once and in order.

        Args:
            score: of the outputs (N, ...) of some images and their labels (N,).
        """
        found = ((all_rows(extract(x).float(), len(y)), y) for x, y in self.batches())
        return torch.cat([score(rows, y.to(rows.device)) for rows, y in found])


# Two views of an image


def views(config: Viewed) -> tuple[Transform, Transform]:
    """Transforms of the first and the second view of images in memory.

    CIFAR's are not blurred: a Gaussian of up to two pixels leaves little of 32 pixels. Digits are
    shifted by up to a pixel: a flip or a crop would make other digits of them.
    """
    if config.name == "digits":
        return digits_train(), digits_train()
    end = cifar_test()
    crop = RandomResizedCrop(SMALL, scale=CONTRAST_SCALE)
    if config.views == "moco_v2":
        view = Compose((crop, *moco_v2(end, blur=False).transforms))
        return view, view
    first, second = (byol(first, end, blur=False).transforms for first in (True, False))
    return Compose((crop, *first)), Compose((crop, *second))


def contrasted_file_views(config: Viewed) -> tuple[View, View]:
    """Geometry and transform of the first and the second view of images from files."""
    crop = framing.RandomResizedCrop(config.size, scale=CONTRAST_SCALE)
    end = normalise_files(config.name)
    if config.views == "moco_v2":
        view = (crop, moco_v2(end))
        return view, view
    return (crop, byol(True, end)), (crop, byol(False, end))


def two_views(
    config: Viewed,
    part: ImageSplit | ImageFiles,
    seed: int,
    train: TrainConfig,
    device: torch.device,
) -> Feed | FileFeed:
    """Shuffled batches with two views of each image of a part, ``x`` and ``view2``."""
    if isinstance(part, ImageFiles):
        first_of_files, other = contrasted_file_views(config)
        return file_feed(part, first_of_files, train, seed, device, second=other)
    first, second = views(config)
    return memory_feed(part, first, train, seed, device, second=second)


# Scores of features


def feature_scores(
    extract: Extract,
    features: Tensor,
    config: Viewed,
    test: ImageSplit | ImageFiles,
    workers: int | None,
) -> dict[str, float]:
    """Alignment of two views of some test images; uniformity and standard deviation of all.

    The images and their views are the same in every evaluation. They are few, so every rank uses
    all of them. `features` (M, C) are those of all test images, without augmentation.
    """
    count = min(ALIGNED, len(test))
    with as_single_rank():
        pairs = list(_first_pairs(config, test, count, features.device, workers))
    first, second = (torch.cat([extract(x) for x in side]) for side in zip(*pairs, strict=True))
    return {
        "alignment": alignment(first, second),
        "uniformity": uniformity(features),
        "feature_std": feature_std(features),
    }


def _first_pairs(
    config: Viewed,
    part: ImageSplit | ImageFiles,
    count: int,
    device: torch.device,
    workers: int | None,
) -> Iterator[tuple[Tensor, Tensor]]:
    looked_at = TrainConfig(batch_size=ALIGNED_BATCH, workers=workers)
    feed: Any = two_views(config, part, config.seed, looked_at, device)
    try:
        for step in range(-(-count // ALIGNED_BATCH)):
            batch = feed.batch(step)
            yield batch["x"], batch["view2"]
    finally:
        close(feed)
