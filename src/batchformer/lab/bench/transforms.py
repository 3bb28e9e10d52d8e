"""Augmentation of whole batches, with random numbers for each sample, against torchvision's."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from batchformer.insight.optional import extra
from batchformer.lab.bench.measure import (
    BenchSettings,
    Stopwatch,
    Work,
    time_interleaved,
    time_works,
)
from batchformer.lab.bench.table import Spread, Table
from batchformer.lab.data import transforms as ours
from batchformer.lab.data.feeds.memory import Feed
from batchformer.lab.data.feeds.order import Steps
from batchformer.lab.data.feeds.samplers import Shuffle
from batchformer.lab.data.sets.images import ImageSplit
from batchformer.lab.data.transforms import Transform, cifar_train

BATCH, SIDE = 512, 32
#: Images on which torchvision is timed one by one: its time is proportional to their number.
ONE_BY_ONE = 128
IMAGES = 50_000  # as many images as CIFAR has for training
ROUNDS, BUDGET = 7, 0.4
#: Deviations of a Gaussian blur, and a kernel of three deviations to each side, as ours has.
BLUR, KERNEL = (0.1, 2.0), 13


@dataclass(frozen=True)
class Pair:
    """Two ways to compute the same images."""

    name: str  # as ours is called
    ours: Transform  # for a whole batch
    theirs: Callable[[Tensor], Tensor]  # of torchvision, for one image
    shape: tuple[int, int, int]  # (C, H, W) of the images


def measure(
    settings: BenchSettings, batch: int = BATCH, chosen: Sequence[Pair] | None = None
) -> Table:
    """Images a second of every transform and preset, ours on the batch and torchvision's."""
    with extra("lab"):
        found = list(chosen) if chosen is not None else pairs()
    columns = ("transform", "pixels", "ours, k/s", "torchvision one by one, k/s")
    table = Table(
        "transforms",
        "Augmentation and normalisation of a batch",
        (*columns, "speed-up", "torchvision on the batch, k/s", "speed-up"),
        settings.environment(torch.uint8),
        notes=[
            f"k/s: thousands of images a second, in batches of {batch}",
            "torchvision draws one set of random numbers for a whole batch, which is another "
            "augmentation: it is timed on batches only where nothing is random",
            f"One by one is timed on {min(ONE_BY_ONE, batch)} images; Cutout, alone and in "
            f"cifar_train, is compared with RandomErasing of a square as large",
        ],
    )
    for pair in found:
        with table.attempt(pair.name):
            _measure_pair(table, settings, pair, batch)
    if settings.on_gpu:
        with table.attempt("Feed"):
            _measure_feed(table, settings, batch)
    return table


def _measure_pair(table: Table, settings: BenchSettings, pair: Pair, batch: int) -> None:
    x = random_images(batch, pair.shape, settings.device)
    single = min(batch, ONE_BY_ONE)
    works: dict[str, Work] = {
        "one by one": lambda: one_by_one(pair.theirs, x[:single]),
        "ours": lambda: whole_batch(pair.ours, x),
    }
    if not pair.ours.draws:
        works["batch"] = lambda: pair.theirs(x)
    found = time_works(works, settings, usual=ROUNDS, budget=BUDGET)
    ours, theirs, together = found["ours"], found["one by one"], found.get("batch")
    table.add(
        pair.name,
        pair.shape[-1],
        ours.ms.map(lambda ms: batch / ms),
        theirs.ms.map(lambda ms: single / ms),
        ours.speed_up.map(lambda ratio: ratio * batch / single),
        None if together is None else together.ms.map(lambda ms: batch / ms),
        None if together is None else Spread.ratio(together.seconds, ours.seconds),
    )


def _measure_feed(table: Table, settings: BenchSettings, batch: int) -> None:
    """Time a run's feed: order, and augmentation of several steps at once on its own stream."""
    x = random_images(IMAGES, (3, 32, 32), settings.device)
    split = ImageSplit(x, torch.randint(0, 100, (IMAGES,)))
    order = Steps(Shuffle(IMAGES, seed=0), batch, drop_last=True)
    feed = Feed(split, cifar_train(), order, seed=0, device=settings.device)
    steps = itertools.count()
    watch = Stopwatch(lambda: feed.batch(next(steps)), settings.device, calls=feed.chunk)
    ms = time_interleaved({"feed": watch}, settings.repeats, usual=ROUNDS, budget=BUDGET)["feed"].ms
    rate = ms.map(lambda ms: batch / ms)
    table.add("Feed with cifar_train", 32, rate, None, None, None, None)
    table.notes.append(
        f"Feed makes the batches of {feed.chunk} steps at a time: {ms.median:.3f} ms for a batch"
    )


def random_images(count: int, shape: tuple[int, int, int], device: torch.device) -> Tensor:
    """Noise (N, C, H, W) uint8."""
    draw = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, *shape), generator=draw, dtype=torch.uint8).to(device)


def whole_batch(transform: Transform, x: Tensor) -> Tensor:
    """Call our transform on a batch, and draw its random numbers."""
    return transform(x, torch.rand(len(x), transform.draws, dtype=torch.float64))


def one_by_one(transform: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Call torchvision's transform on each image, as a data set does, and stack the images."""
    return torch.stack([transform(image) for image in x])


# Each of our transforms and presets, beside the torchvision transforms that do the same.


def pairs() -> list[Pair]:
    """All pairs; digits are 8x8 with one channel."""
    from torchvision.transforms import v2

    jitter, grey, flip = v2.ColorJitter, v2.RandomGrayscale, v2.RandomHorizontalFlip()
    crop, policy = v2.RandomCrop(SIDE, padding=4), v2.AutoAugmentPolicy.CIFAR10
    auto = v2.AutoAugment(policy, fill=128)
    # One erased square of a quarter of the image is the nearest that torchvision has to Cutout.
    hole = v2.RandomErasing(p=1.0, scale=(0.25, 0.25), ratio=(1.0, 1.0))
    blur = v2.GaussianBlur(KERNEL, BLUR)
    imagenet, cifar = _normalise(ours.IMAGENET), _normalise(ours.cifar_test())
    moco = [v2.RandomApply([jitter(0.4, 0.4, 0.4, 0.1)], 0.8), grey(0.2), v2.RandomApply([blur])]
    byol = [v2.RandomApply([jitter(0.4, 0.4, 0.2, 0.1)], 0.8), grey(0.2), blur]
    # Not the images' own size: torchvision returns images of the wanted size as they are.
    smaller = SIDE * 7 // 8
    made: dict[str, tuple[Transform, Any]] = {
        "RandomCrop": (ours.RandomCrop(4), crop),
        "RandomFlip": (ours.RandomFlip(), flip),
        "RandomRotation": (ours.RandomRotation(15), v2.RandomRotation(15)),
        "RandomResizedCrop": (ours.RandomResizedCrop(SIDE), v2.RandomResizedCrop(SIDE)),
        "Resize": (ours.Resize(smaller), v2.Resize(smaller)),
        "AutoAugment": (ours.AutoAugment(), auto),
        "RandAugment": (ours.RandAugment(), v2.RandAugment()),
        "IncreasingRandAugment": (ours.IncreasingRandAugment(), v2.RandAugment(2, 9)),
        "ColorJitter": (ours.ColorJitter(0.4, 0.4, 0.4, 0.1), jitter(0.4, 0.4, 0.4, 0.1)),
        "RandomGrey": (ours.RandomGrey(0.2), grey(0.2)),
        "RandomSolarize": (ours.RandomSolarize(), v2.RandomSolarize(128, 0.5)),
        "GaussianBlur": (ours.GaussianBlur(BLUR, 0.5), v2.RandomApply([blur])),
        "Cutout": (ours.Cutout(SIDE // 2), hole),
        "Normalise": (ours.IMAGENET, imagenet),
        # It acts on normalised images, so the normalisation is timed with it.
        "RandomErasing": (
            ours.Compose((ours.IMAGENET, ours.RandomErasing())),
            v2.Compose([imagenet, v2.RandomErasing(0.25, value="random")]),
        ),
        "cifar_train": (cifar_train(), v2.Compose([crop, flip, auto, hole, cifar])),
        "cifar_test": (ours.cifar_test(), cifar),
        "moco_v2": (ours.moco_v2(), v2.Compose([*moco, flip, imagenet])),
        "byol": (ours.byol(True), v2.Compose([*byol, flip, imagenet])),
        "domain_test": (
            ours.domain_test(smaller),
            v2.Compose([v2.Resize((smaller, smaller)), imagenet]),
        ),
    }
    digits = _normalise(ours.digits_test())
    shifted = v2.Compose([v2.RandomCrop(8, padding=1), digits])
    return [
        *(Pair(name, own, theirs, (3, SIDE, SIDE)) for name, (own, theirs) in made.items()),
        Pair("digits_train", ours.digits_train(), shifted, (1, 8, 8)),
        Pair("digits_test", ours.digits_test(), digits, (1, 8, 8)),
    ]


def _normalise(same: ours.Normalise) -> Any:
    from torchvision.transforms import v2

    return v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.Normalize(same.mean, same.std)])
