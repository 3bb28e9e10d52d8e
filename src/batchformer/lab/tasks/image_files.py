"""Recognition on image files, long-tailed or not; workers read and the device augments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from batchformer.lab.config.data import LongTailConfig
from batchformer.lab.data.feeds import framing
from batchformer.lab.data.feeds.loader import View
from batchformer.lab.data.files.image_files import sizes_hash
from batchformer.lab.data.sets.image_layouts import lists_of
from batchformer.lab.data.sets.images import only_classes
from batchformer.lab.data.sets.long_tailed_files import (
    LongTailedFiles,
    annotated,
    imagenet,
    own_files,
    with_at_most,
)
from batchformer.lab.data.transforms import (
    IMAGENET,
    CentreCrop,
    ColorJitter,
    Compose,
    GaussianBlur,
    IncreasingRandAugment,
    Normalise,
    RandAugment,
    RandomErasing,
    RandomFlip,
    RandomGrey,
    RandomResizedCrop,
    Resize,
    Transform,
)
from batchformer.lab.tasks.base import LabelledTask

#: Normalisation of iNaturalist 2018.
INATURALIST = Normalise(mean=(0.466, 0.471, 0.380), std=(0.195, 0.194, 0.192))


@dataclass(frozen=True)
class ImageFileTask(LabelledTask):
    """Data, batches and scores of one experiment on image files."""

    data: LongTailedFiles
    test_batch: ClassVar[int] = 128

    @classmethod
    def load(cls, config: LongTailConfig, device: torch.device) -> ImageFileTask:
        """Read the lists and look for every image; an error says what is missing and where."""
        if config.name == "folder":
            data = own_files(config.root, config.train_list, config.test_list, config.seed)
        elif config.name == "imagenet":
            data = imagenet(config.root)
        else:
            named = (config.train_list, config.test_list)
            lists = lists_of(config.name, config.root, *named, config.scored_on)
            data = annotated(config.name, lists, with_val=config.meta_from == "val")
        data = with_at_most(data, config.per_class, config.seed)
        data = only_classes(data, config.min_images, config.max_images)
        data.check_all()
        return cls(data, config, device)

    def facts(self) -> dict[str, Any]:
        facts = {
            **super().facts(),
            "classes": self.num_classes,
            "classes_without_test_image": len(self.data.untested),
        }
        if self.data.split_seed is not None:
            facts["split_seed"] = self.data.split_seed
        if self.data.val is not None:
            facts["val_sha256"] = self.data.val.sha256
        if self.config.name == "folder":
            facts["file_sizes_sha256"] = sizes_hash((self.data.train, self.data.test))
        return {**facts, "remarks": list(self.data.remarks)} if self.data.remarks else facts

    def training_views(self) -> tuple[View, View | None]:
        """The views of the configured augmentation.

        PaCo's first view has torchvision's RandAugment with 2 operations of magnitude 10; its
        authors use another implementation, with noise on the magnitude. Neither of its views turns
        the hue, unlike those of CIFAR. DeiT's crop is bicubic, as in timm, and with RandAugment
        colours are not jittered.
        """
        config, end = self.config, normalise_files(self.config.name)
        crop = framing.RandomResizedCrop(config.size)
        if config.augment == "deit":
            fine = framing.RandomResizedCrop(config.size, interpolation="bicubic")
            steps = (RandomFlip(), IncreasingRandAugment(), end, RandomErasing())
            return (fine, Compose(steps)), None
        flip, jitter, blur = RandomFlip(), ColorJitter(0.4, 0.4, 0.4), GaussianBlur((0.1, 2.0), 0.5)
        simclr = (jitter, RandomGrey(0.2), blur, flip)
        first: dict[str, tuple[Transform, ...]] = {
            "resized": (flip,),
            "jitter": (flip, jitter),
            "paco": (flip, jitter, RandAugment(2, 10)),
            "simclr": simclr,
        }
        view = (crop, Compose((*first[config.augment], end)))
        two = config.augment in ("paco", "simclr")
        return view, (crop, Compose((*simclr, end))) if two else None

    @property
    def test_view(self) -> View:
        # DeiT's code resizes test images by the bicubic rule too.
        fine = self.config.augment == "deit"
        crop = centre_crop(self.config.size, interpolation="bicubic" if fine else "bilinear")
        return crop, normalise_files(self.config.name)


def normalise_files(name: str) -> Normalise:
    """Normalisation of the data set of image files with this name."""
    return INATURALIST if name == "inaturalist18" else IMAGENET


def centre_crop(
    size: int, both: bool = False, interpolation: framing.Interpolation = "bilinear"
) -> framing.ResizeCentreCrop:
    """Resize the shorter side, or both, to 8/7 of `size` (256 for 224), and cut out the centre."""
    return framing.ResizeCentreCrop(size, round(size * 8 / 7), both, interpolation)


def in_memory(view: View) -> Compose:
    """The transform of images in memory that does what a view of image files does."""
    geometry, transform = view
    crop: tuple[Transform, ...]
    if isinstance(geometry, framing.RandomResizedCrop):
        crop = (RandomResizedCrop(geometry.size, geometry.scale, geometry.ratio),)
    elif isinstance(geometry, framing.ResizeCentreCrop):
        side = geometry.shorter
        crop = (Resize((side, side) if geometry.both else side), CentreCrop(geometry.size))
    elif isinstance(geometry, framing.ResizeWhole):
        crop = (Resize((geometry.size, geometry.size)),)
    else:
        raise TypeError(f"there is no transform of images in memory for {geometry}")
    rest = transform.transforms if isinstance(transform, Compose) else (transform,)
    return Compose((*crop, *rest))
