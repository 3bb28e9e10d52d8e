"""The two views of an image that contrastive learning compares, by name."""

from __future__ import annotations

from batchformer.data import framing
from batchformer.data.loader import View
from batchformer.data.transforms import (
    CONTRAST_SCALE,
    Transform,
    byol,
    byol_colours,
    cifar_test,
    digits_train,
    moco_v2,
    moco_v2_colours,
)
from batchformer.tasks.augmentation import normalise_files
from batchformer.tasks.contrast_config import ContrastConfig

#: Side of CIFAR's images.
SMALL = 32


def views(config: ContrastConfig) -> tuple[Transform, Transform]:
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


def contrasted_file_views(config: ContrastConfig) -> tuple[View, View]:
    """Geometry and transform of the first and the second view of images from files."""
    crop = framing.RandomResizedCrop(config.size, scale=CONTRAST_SCALE)
    end = normalise_files(config.images())
    if config.views == "moco_v2":
        view = (crop, moco_v2_colours(end))
        return view, view
    return (crop, byol_colours(True, end)), (crop, byol_colours(False, end))
