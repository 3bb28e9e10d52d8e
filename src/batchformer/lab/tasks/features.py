"""Two views of images, and scores of features."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from batchformer.lab.config.data import ContrastConfig, LongTailConfig
from batchformer.lab.config.training import TrainConfig
from batchformer.lab.data.feeds import framing
from batchformer.lab.data.feeds.loader import FileFeed
from batchformer.lab.data.feeds.memory import Feed, close
from batchformer.lab.data.files.image_files import ImageFiles
from batchformer.lab.data.sets.images import ImageSplit
from batchformer.lab.data.transforms import (
    CONTRAST_SCALE,
    byol,
    cifar_test,
    digits_train,
    moco_v2,
)
from batchformer.lab.methods.training_images import Extract
from batchformer.lab.metrics.representation import alignment, feature_std, uniformity
from batchformer.lab.tasks.base import image_feed
from batchformer.lab.tasks.image_files import in_memory, normalise_files
from batchformer.nn.exchange import as_single_rank

#: Side of CIFAR's images.
SMALL = 32
#: Test images whose two views are compared, and the size of their batches.
ALIGNED, ALIGNED_BATCH = 1024, 128

#: Settings of data with two views of each image, or of labelled data that names views.
Viewed = ContrastConfig | LongTailConfig


# Two views of an image


def views(config: Viewed, files: bool) -> tuple[Any, Any]:
    """The first and the second view of images, as :func:`image_feed` takes them.

    CIFAR's images are not blurred: a Gaussian of up to two pixels leaves little of 32 pixels.
    Digits are shifted by up to a pixel: a flip or a crop would turn them into other digits.
    """
    if config.name == "digits":
        return digits_train(), digits_train()
    crop = framing.RandomResizedCrop(config.size if files else SMALL, scale=CONTRAST_SCALE)
    end = normalise_files(config.name) if files else cifar_test()
    if config.views == "moco_v2":
        first = second = (crop, moco_v2(end, blur=files))
    else:
        first, second = (crop, byol(True, end, blur=files)), (crop, byol(False, end, blur=files))
    return (first, second) if files else (in_memory(first), in_memory(second))


def two_views(
    config: Viewed,
    part: ImageSplit | ImageFiles,
    seed: int,
    train: TrainConfig,
    device: torch.device,
) -> Feed | FileFeed:
    """Shuffled batches with two views of each image of a part, ``x`` and ``view2``."""
    first, second = views(config, files=isinstance(part, ImageFiles))
    return image_feed(part, first, train, seed, device, second=second)


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
