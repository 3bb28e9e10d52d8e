"""Augmentation of whole batches, each sample with numbers of its own, against torchvision's."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from batchformer.lab.bench.references import Pair, pairs
from batchformer.lab.bench.settings import BenchSettings
from batchformer.lab.bench.spread import spread_of
from batchformer.lab.bench.table import Table
from batchformer.lab.bench.timing import Stopwatch, Timer, measured
from batchformer.lab.data.feeds.memory import CHUNK_BYTES, Feed
from batchformer.lab.data.sets.images import ImageSplit
from batchformer.lab.data.transforms import Transform, cifar_train
from batchformer.lab.report.results.extra import extra

BATCH, LARGE_BATCH, LARGE_SIDE = 512, 64, 224
LARGE = ("RandomResizedCrop", "GaussianBlur", "moco_v2")
#: Images on which torchvision is timed one by one: its time is proportional to their number.
ONE_BY_ONE = 128
#: As many images as CIFAR has for training.
IMAGES = 50_000
ROUNDS, BUDGET = 7, 0.4


def measure(
    settings: BenchSettings, batch: int = BATCH, chosen: Sequence[Pair] | None = None
) -> Table:
    """Images a second of every transform and preset, ours on the batch and torchvision's."""
    with extra("lab"):
        found = list(chosen) if chosen is not None else pairs()
        large = pairs(LARGE_SIDE) if settings.full and chosen is None else []
    columns = ("transform", "pixels", "ours, k/s", "torchvision one by one, k/s")
    table = Table(
        "transforms",
        "Augmentation and normalisation of a batch",
        (*columns, "speed-up", "torchvision on the batch, k/s", "speed-up"),
        settings.environment(torch.uint8),
        notes=[
            f"k/s: thousands of images a second, in batches of {batch}, or {LARGE_BATCH} of "
            f"{LARGE_SIDE} pixels. CentreCrop, which copies nothing, is part of imagenet_test",
            "Given a whole batch, torchvision draws one set of random numbers for all of it, which "
            "is another augmentation: it is timed on batches only where nothing is random",
            f"One by one is timed on {min(ONE_BY_ONE, batch)} images; Cutout, alone and in "
            f"cifar_train, is compared with RandomErasing of a square as large",
        ],
    )
    for pair in found:
        with table.attempt(pair.name):
            _one_pair(table, settings, pair, batch)
    for pair in large:
        if pair.name in LARGE:
            with table.attempt(f"{pair.name} at {LARGE_SIDE} pixels"):
                _one_pair(table, settings, pair, LARGE_BATCH)
    if settings.on_gpu:
        with table.attempt("Feed"):
            _feed(table, settings, batch)
    return table


def _one_pair(table: Table, settings: BenchSettings, pair: Pair, batch: int) -> None:
    x = random_images(batch, pair.shape, settings.device)
    single = min(batch, ONE_BY_ONE)
    timers: dict[str, Timer] = {
        "one by one": Stopwatch(
            functools.partial(one_by_one, pair.theirs, x[:single]), settings.device
        ),
        "ours": Stopwatch(functools.partial(whole_batch, pair.ours, x), settings.device),
    }
    if not pair.ours.draws:
        timers["batch"] = Stopwatch(functools.partial(pair.theirs, x), settings.device)
    found = measured(timers, settings.repeats, usual=ROUNDS, budget=BUDGET)
    ours, theirs, together = found["ours"], found["one by one"], found.get("batch")
    on_batch = None
    if together is not None:
        ratios = zip(together.seconds, ours.seconds, strict=True)
        on_batch = spread_of([their / own for their, own in ratios])
    table.add(
        pair.name,
        pair.shape[-1],
        ours.ms.through(lambda ms: batch / ms),
        theirs.ms.through(lambda ms: single / ms),
        ours.speed_up.through(lambda ratio: ratio * batch / single),
        None if together is None else together.ms.through(lambda ms: batch / ms),
        on_batch,
    )


def _feed(table: Table, settings: BenchSettings, batch: int) -> None:
    """The feed of a run: order, augmentation of several steps together, on a stream of its own."""
    x = random_images(IMAGES, (3, 32, 32), settings.device)
    split = ImageSplit(x, torch.randint(0, 100, (IMAGES,)))
    feed = Feed(split, cifar_train(), batch, seed=0, drop_last=True, device=settings.device)
    steps = itertools.count()
    chunk = max(CHUNK_BYTES // (batch * x[0].numel() * torch.float32.itemsize), 1)
    watch = Stopwatch(lambda: feed.batch(next(steps)), settings.device, calls=chunk)
    ms = measured({"feed": watch}, settings.repeats, usual=ROUNDS, budget=BUDGET)["feed"].ms
    rate = ms.through(lambda ms: batch / ms)
    table.add("Feed with cifar_train", 32, rate, None, None, None, None)
    table.notes.append(
        f"Feed makes the batches of {chunk} steps at a time: {ms.median:.3f} ms for a batch"
    )


def random_images(count: int, shape: tuple[int, int, int], device: torch.device) -> Tensor:
    """Noise (N, C, H, W) uint8."""
    draw = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, *shape), generator=draw, dtype=torch.uint8).to(device)


def whole_batch(transform: Transform, x: Tensor) -> Tensor:
    """Ours, the drawing of its numbers included."""
    return transform(x, torch.rand(len(x), transform.draws, dtype=torch.float64))


def one_by_one(transform: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Torchvision's as a data set calls it, and the batch put together."""
    return torch.stack([transform(image) for image in x])
