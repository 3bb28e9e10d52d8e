"""The two views of an image that contrastive learning compares, by name."""

from __future__ import annotations

import torch

from batchformer.lab.config.data import ContrastConfig, LongTailConfig
from batchformer.lab.config.training import TrainConfig
from batchformer.lab.data.feeds import framing
from batchformer.lab.data.feeds.loader import FileFeed, View
from batchformer.lab.data.feeds.memory import Feed
from batchformer.lab.data.files.image_files import ImageFiles
from batchformer.lab.data.sets.images import ImageSplit
from batchformer.lab.data.transforms import (
    CONTRAST_SCALE,
    Transform,
    byol,
    byol_colours,
    cifar_test,
    digits_train,
    moco_v2,
    moco_v2_colours,
)
from batchformer.lab.tasks.augmentation import normalise_files
from batchformer.lab.tasks.file_feed import file_feed

#: Side of CIFAR's images.
SMALL = 32

#: Images with two views, or labelled ones whose views are named beside.
Viewed = ContrastConfig | LongTailConfig


def views(config: Viewed) -> tuple[Transform, Transform]:
    """Transforms of the first and the second view of images in memory.

    A Gaussian of up to two pixels leaves little of an image of 32, so that CIFAR's are not blurred;
    digits are shifted by up to a pixel, as a flip or a crop would make others of them.
    """
    if config.name == "digits":
        return digits_train(), digits_train()
    end = cifar_test()
    if config.views == "moco_v2":
        view = moco_v2(SMALL, end, blur=False)
        return view, view
    return byol(SMALL, True, end, blur=False), byol(SMALL, False, end, blur=False)


def contrasted_file_views(config: Viewed) -> tuple[View, View]:
    """Geometry and transform of the first and the second view of images from files."""
    crop = framing.RandomResizedCrop(config.size, scale=CONTRAST_SCALE)
    end = normalise_files(config.name)
    if config.views == "moco_v2":
        view = (crop, moco_v2_colours(end))
        return view, view
    return (crop, byol_colours(True, end)), (crop, byol_colours(False, end))


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
    size, last, parts = train.batch_size, train.drop_last, train.accumulate
    first, second = views(config)
    return Feed(part, first, size, seed, last, device, second=second, accumulate=parts)
