"""Images a second from JPEG files to normalised batches: ours, and what most people write."""

from __future__ import annotations

import contextlib
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, RandomSampler

from batchformer.insight.optional import extra
from batchformer.lab.bench.measure import BenchSettings
from batchformer.lab.bench.table import Spread, Table
from batchformer.lab.data.feeds.framing import RandomResizedCrop
from batchformer.lab.data.feeds.loader import FileFeed
from batchformer.lab.data.feeds.order import Steps
from batchformer.lab.data.feeds.samplers import Shuffle
from batchformer.lab.data.feeds.workers import PREFETCH
from batchformer.lab.data.files.image_files import ImageFiles
from batchformer.lab.data.transforms import IMAGENET, Compose, RandomFlip

WIDTH, HEIGHT = 500, 375  # the commonest size of a photograph in ImageNet
REPEATS, FULL_REPEATS = 3, 5
BATCHES, FULL_BATCHES = 10, 16  # batches in one timing

Batches = Generator[Any, None, None]


def measure(
    settings: BenchSettings,
    *,
    images: int = 64,
    batch_size: int = 32,
    batches: int | None = None,
    workers: int = 2,
    size: int = 224,
) -> Table:
    """Images a second of both pipelines.

    Both crop and resize at random, flip, and normalise the same JPEG files, which the system's file
    cache holds. Each is timed while its workers are busy: after it has used up what it had read
    ahead, and before it ends.

    Args:
        settings: how often; the device is always the CPU.
    """
    with extra("lab"):
        import torchvision  # noqa: F401
    repeats = settings.repeats or (FULL_REPEATS if settings.full else REPEATS)
    batches = batches or (FULL_BATCHES if settings.full else BATCHES)
    rates: dict[str, list[float]] = {"plain": [], "ours": []}
    pipelines: list[tuple[str, Callable[..., Batches]]] = [("plain", _plain), ("ours", _ours)]
    with tempfile.TemporaryDirectory() as folder:
        kilobytes = make_photographs(Path(folder), images)
        for repeat in range(repeats + 1):
            for name, begin in pipelines if repeat % 2 else reversed(pipelines):
                stream = begin(Path(folder), batch_size, workers, size)
                seconds = _seconds(stream, batches, ahead=workers * PREFETCH + 1)
                if repeat:  # the first pass warms caches up
                    rates[name].append(batches * batch_size / seconds)
    table = Table(
        "loader",
        "From JPEG files to normalised batches: random resized crop and flip",
        ("pipeline", "images/s", "ratio"),
        settings.environment("uint8 to float32"),
        notes=[
            f"Files of {kilobytes:.0f} kB in the system's cache, batches of {batch_size}, "
            f"{workers} worker processes each, on the CPU"
        ],
    )
    table.add("Pillow, torchvision, DataLoader", Spread.of(rates["plain"]), None)
    table.add("ours", Spread.of(rates["ours"]), Spread.ratio(rates["ours"], rates["plain"]))
    return table


def make_photographs(folder: Path, images: int) -> float:
    """Write JPEG files as heavy as photographs, in class folders; returns their mean size in kB.

    They are smooth fields of colour, with noise that costs the encoder about what texture would.
    """
    from PIL import Image

    draw = np.random.default_rng(0)
    for number in range(images):
        place = folder / f"class_{number % 4}"
        place.mkdir(exist_ok=True)
        knots = Image.fromarray(draw.integers(0, 256, (9, 12, 3), dtype=np.uint8))
        field = np.asarray(knots.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC), np.float32)
        noisy = (field + draw.normal(0, 14, field.shape)).clip(0, 255).astype(np.uint8)
        Image.fromarray(noisy).save(place / f"{number:05d}.jpg", quality=90)
    return statistics.mean(file.stat().st_size / 1000 for file in folder.rglob("*.jpg"))


def _seconds(stream: Batches, batches: int, ahead: int) -> float:
    with contextlib.closing(stream):  # its workers must not take part in the next timing
        for _ in range(ahead):
            next(stream)
        started = time.perf_counter()
        for _ in range(batches):
            next(stream)
        return time.perf_counter() - started


def _plain(folder: Path, batch_size: int, workers: int, size: int) -> Batches:
    """Pillow, torchvision's transforms one image at a time, and a DataLoader."""
    from torchvision import transforms
    from torchvision.datasets import ImageFolder

    steps = transforms.Compose(
        [
            transforms.RandomResizedCrop(size),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(IMAGENET.mean, IMAGENET.std),
        ]
    )
    data = ImageFolder(str(folder), steps)
    endless = RandomSampler(data, num_samples=10**6)
    yield from DataLoader(
        data, batch_size, sampler=endless, num_workers=workers, prefetch_factor=PREFETCH
    )


def _ours(folder: Path, batch_size: int, workers: int, size: int) -> Batches:
    files, view = ImageFiles.from_folder(folder), Compose((RandomFlip(), IMAGENET))
    crop, order = RandomResizedCrop(size), Steps(Shuffle(len(files), seed=0), batch_size)
    with contextlib.closing(FileFeed(files, crop, view, order, seed=0, workers=workers)) as feed:
        for step in itertools.count():
            yield feed.batch(step)
