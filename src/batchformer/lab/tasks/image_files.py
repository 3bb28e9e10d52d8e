"""Recognition on image files, long-tailed or not; workers read and the device augments."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from batchformer.insight.classes import Classes
from batchformer.insight.images import LabelledImages
from batchformer.lab.config.data import LongTailConfig
from batchformer.lab.config.training import TrainConfig
from batchformer.lab.data.feeds import framing
from batchformer.lab.data.feeds.loader import (
    EvaluationImageFiles,
    FileFeed,
    View,
    evaluation_batches,
)
from batchformer.lab.data.feeds.samplers import (
    ClassBalanced,
    ReversedClasses,
    Sampler,
    sampler_named,
)
from batchformer.lab.data.files.image_files import ImageFiles
from batchformer.lab.data.sets.image_layouts import lists_of
from batchformer.lab.data.sets.long_tailed_files import (
    LongTailedFiles,
    annotated,
    imagenet,
    list_hash,
    only_classes_of_files,
    own_files,
    with_at_most,
)
from batchformer.lab.data.transforms import (
    IMAGENET,
    ColorJitter,
    Compose,
    GaussianBlur,
    IncreasingRandAugment,
    Normalise,
    RandAugment,
    RandomErasing,
    RandomFlip,
    RandomGrey,
)
from batchformer.lab.engine.method import Batches
from batchformer.lab.tasks.base import LabelledTask, file_feed, split_facts, with_second
from batchformer.nn.randomness import seed_for

#: Normalisation of iNaturalist 2018.
INATURALIST = Normalise(mean=(0.466, 0.471, 0.380), std=(0.195, 0.194, 0.192))
#: Images in a test batch.
TEST_BATCH = 128


@dataclass(frozen=True)
class ImageFileTask(LabelledTask):
    """Data, batches and scores of one experiment on image files."""

    data: LongTailedFiles
    config: LongTailConfig
    device: torch.device

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
        data = only_classes_of_files(data, config.min_images, config.max_images)
        data.check_all()
        return cls(data, config, device)

    def facts(self) -> dict[str, Any]:
        facts = {
            **split_facts(self.data),
            "classes": self.num_classes,
            "classes_without_test_image": len(self.data.untested),
        }
        if self.data.split_seed is not None:
            facts["split_seed"] = self.data.split_seed
        if self.data.val is not None:
            facts["val_sha256"] = list_hash(self.data.val)
        return {**facts, "remarks": list(self.data.remarks)} if self.data.remarks else facts

    def feed(self, train: TrainConfig, seed: int) -> Batches:
        """Augmented training batches, in the order of the configured sampler."""
        config, files = self.config, self.data.train
        first, second = file_views(config)
        sampler = sampler_named(config.sampler, files.labels, seed, config.per_turn)
        feed = file_feed(files, first, train, seed, self.device, second=second, sampler=sampler)
        if config.paired == "reversed":
            rare = ReversedClasses(files.labels, seed, stream=1)
            return with_second(feed, self._second(files, train, seed, rare), "paired")
        return with_second(feed, self._meta(train, seed), "meta") if config.meta_batch else feed

    def _meta(self, train: TrainConfig, seed: int) -> FileFeed:
        """Class-balanced full batches: a smaller one would hold only some classes."""
        files: ImageFiles = self.data.val or self.data.train
        size = min(self.config.meta_batch, len(files))
        full = dataclasses.replace(train, batch_size=size, drop_last=True)
        return self._second(files, full, seed, ClassBalanced(files.labels, seed, stream=1))

    def _second(
        self, files: ImageFiles, train: TrainConfig, seed: int, sampler: Sampler
    ) -> FileFeed:
        """Batches beside those of training, augmented with random numbers of their own."""
        view, other = file_views(self.config)[0], seed_for(seed, "augmentation", 1)
        return file_feed(files, view, train, other, self.device, sampler=sampler)

    @property
    def train_labels(self) -> Tensor:
        return self.data.train.labels

    def as_at_test(
        self, part: ImageFiles, workers: int | None = None, batch: int = 0
    ) -> Iterator[tuple[Tensor, Tensor]]:
        view, size = view_at_test(self.config), batch or TEST_BATCH
        for read in evaluation_batches(part, *view, size, self.device, workers, sharded=True):
            yield read["x"], read["y"]

    def shown(self, workers: int | None = None) -> LabelledImages | None:
        """Test images, for figures."""
        data, view = self.data, view_at_test(self.config)
        classes = Classes.by_shots(data.classes, data.train_counts, self.config.shots)
        return EvaluationImageFiles(classes, data.test, view, self.device, workers)


# Augmentation, by the name a configuration gives it


def normalise_files(name: str) -> Normalise:
    """Normalisation of the data set of image files with this name."""
    return INATURALIST if name == "inaturalist18" else IMAGENET


def file_views(config: LongTailConfig) -> tuple[View, View | None]:
    """Geometry and transform of training images from files, and those of their second view.

    PaCo's first view has torchvision's RandAugment with 2 operations of magnitude 10; its authors
    use another implementation, with noise on the magnitude. DeiT's crop is bicubic, as in timm, and
    with RandAugment colours are not jittered.
    """
    crop, end = framing.RandomResizedCrop(config.size), normalise_files(config.name)
    if config.augment == "deit":
        fine = framing.RandomResizedCrop(config.size, interpolation="bicubic")
        steps = (RandomFlip(), IncreasingRandAugment(), end, RandomErasing())
        return (fine, Compose(steps)), None
    jitter = ColorJitter(0.4, 0.4, 0.4)
    plain = Compose((RandomFlip(), end))
    jittered = Compose((RandomFlip(), jitter, end))
    augmented = Compose((RandomFlip(), jitter, RandAugment(2, 10), end))
    simclr = Compose(
        (
            ColorJitter(0.4, 0.4, 0.4, 0.1),
            RandomGrey(0.2),
            GaussianBlur((0.1, 2.0), p=0.5),
            RandomFlip(),
            end,
        )
    )
    first = {"resized": plain, "jitter": jittered, "paco": augmented, "simclr": simclr}
    two = config.augment in ("paco", "simclr")
    return (crop, first[config.augment]), (crop, simclr) if two else None


def view_at_test(config: LongTailConfig) -> View:
    """Geometry and transform of test images from files: shorter side resized, centre cropped."""
    shorter = round(config.size * 8 / 7)
    return framing.ResizeCentreCrop(config.size, shorter), normalise_files(config.name)
