"""Batches of images with boxes, each image of its own size."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import torch
from torch import Tensor

from batchformer.lab.data.feeds.order import Share, order_of
from batchformer.lab.data.feeds.workers import usable_workers
from batchformer.lab.data.files.decode import decode
from batchformer.lab.data.sets.voc import BoxedImage
from batchformer.nn.randomness import generator

# An image with boxes as a detector sees it: read, resized, mirrored.

#: Bytes of decoded images that are kept: a few thousand of VOC's size.
KEPT_BYTES = 2 * 2**30
#: Pillow's names of images with eight bits a channel, which become RGB without loss.
_EIGHT_BITS = ("1", "L", "LA", "P", "RGB", "RGBA")


@dataclass(frozen=True)
class Job:
    """An image to be read, and how.

    Args:
        image: file and boxes.
        shorter: length that its shorter side gets.
        flip: mirror it left to right.
    """

    image: BoxedImage
    shorter: int
    flip: bool = False


@dataclass(frozen=True)
class Shown:
    """An image as a detector sees it.

    Args:
        x: (3, H, W) uint8.
        boxes: (n, 4) float32 in its pixels.
        labels: (n,) int64.
        scale: width and height over those of the file.
    """

    x: Tensor
    boxes: Tensor
    labels: Tensor
    scale: tuple[float, float]


def resized(height: int, width: int, shorter: int, longest: int) -> tuple[int, int]:
    """Height and width with this shorter side, or less where the longer one would be too long.

    >>> resized(375, 500, 480, 1333), resized(100, 400, 480, 1333)
    ((480, 640), (333, 1333))
    """
    scale = min(shorter / min(height, width), longest / max(height, width))
    return max(int(height * scale + 0.5), 1), max(int(width * scale + 0.5), 1)


def shown(
    x: Tensor, boxes: Tensor, labels: Tensor, shorter: int, longest: int, flip: bool = False
) -> Shown:
    """Resize, and mirror if asked; boxes are cut at the border, and what has no area is left out.

    Args:
        x: (3, H, W) uint8.
        boxes: (n, 4) left, top, right, bottom in its pixels.
        labels: (n,) of the boxes.
        shorter: length of the shorter side.
        longest: largest length of the longer side.
        flip: mirror it left to right.
    """
    from PIL import Image

    old_height, old_width = x.shape[1:]
    height, width = resized(old_height, old_width, shorter, longest)
    pixels = np.ascontiguousarray(x.permute(1, 2, 0).numpy())
    picture = Image.fromarray(pixels).resize((width, height), Image.Resampling.BILINEAR)
    x = torch.from_numpy(np.array(picture)).permute(2, 0, 1)
    scale = (width / old_width, height / old_height)
    boxes = boxes * torch.tensor([*scale, *scale], dtype=boxes.dtype)
    boxes = boxes.clamp(min=0).minimum(torch.tensor([width, height] * 2, dtype=boxes.dtype))
    if flip:
        x = x.flip(2)
        boxes = torch.stack((width - boxes[:, 2], boxes[:, 1], width - boxes[:, 0], boxes[:, 3]), 1)
    kept = (boxes[:, 2:] > boxes[:, :2]).all(1)
    return Shown(x.contiguous(), boxes[kept], labels[kept], scale)


def decode_in_thread(path: Path) -> Tensor:
    """What `decode` gives, (3, H, W) uint8, mostly without it.

    `decode` changes Python's filters of warnings for a moment, and these are the same for all
    threads. Pillow needs no such thing; what it does not know well is rare, and left to `decode`,
    which also has the words for what is damaged.
    """
    from PIL import Image, ImageOps

    try:
        with Image.open(path) as file:
            if file.mode in _EIGHT_BITS:
                upright = ImageOps.exif_transpose(file).convert("RGB")
                return torch.from_numpy(np.array(upright)).permute(2, 0, 1)
    except (MemoryError, FileNotFoundError):
        raise
    except Exception:  # each of Pillow's readers has errors of its own
        return decode(path)
    return decode(path)


class ShownReader:
    """Reads jobs, from any thread; keeps decoded images as long as they take little memory.

    Args:
        longest: largest length of a longer side.
        kept_bytes: how much is kept; 0 reads every file each time.
    """

    def __init__(self, longest: int, kept_bytes: int = KEPT_BYTES) -> None:
        self.longest, self.left = longest, kept_bytes
        self._images: dict[Path, Tensor] = {}
        self._lock = Lock()

    def __call__(self, job: Job) -> Shown:
        x, image = self.decoded(job.image.path), job.image
        return shown(x, image.boxes, image.labels, job.shorter, self.longest, job.flip)

    def decoded(self, path: Path) -> Tensor:
        """(3, H, W) uint8, as the file has it."""
        image = self._images.get(path)
        if image is None:
            image = decode_in_thread(path)
            with self._lock:
                if path not in self._images and image.numel() <= self.left:
                    self._images[path] = image
                    self.left -= image.numel()
        return image


# Batches of images with boxes, each image of its own size; a function of the step.

#: Steps that are read ahead of their use.
AHEAD = 4


def read_ahead(
    pool: ThreadPoolExecutor | None,
    read: Callable[[Job], Shown],
    groups: Iterable[Sequence[Job]],
    ahead: int = AHEAD,
) -> Iterator[list[Shown]]:
    """The images of each group in order, while threads read those of the next few groups.

    Args:
        pool: of threads; None: the caller reads.
        read: what they do.
        groups: jobs of one step each.
        ahead: groups in hand beyond the one that is asked for.
    """
    if pool is None:
        for group in groups:
            yield [read(job) for job in group]
        return
    in_hand: deque[list[Future[Shown]]] = deque()
    try:
        for group in groups:
            in_hand.append([pool.submit(read, job) for job in group])
            if len(in_hand) > ahead:
                yield [future.result() for future in in_hand.popleft()]
        while in_hand:
            yield [future.result() for future in in_hand.popleft()]
    finally:  # also where nobody asks for the rest
        for future in itertools.chain.from_iterable(in_hand):
            future.cancel()


def thread_pool(workers: int | None) -> ThreadPoolExecutor | None:
    """Threads that read: as many as wanted, None for one on each core; none at all for 0."""
    count = usable_workers(workers)
    return ThreadPoolExecutor(count, "batchformer-images") if count else None


class DetectionFeed:
    """Shuffled images with boxes, each mirrored or not and with a shorter side of its own.

    A batch is a function of (seed, step) alone: the same with any number of threads, and after
    resuming at any step. Steps asked for in sequence are read ahead; another step starts there.
    With several ranks each reads its own part of it, mirrored and sized as in the whole.

    Args:
        images: to train on.
        shorter: lengths of the shorter side, one drawn for each image.
        longest: largest length of the longer side.
        batch_size: images in a batch.
        seed: of the run; order and augmentation draw from it separately.
        drop_last: leave out the last, smaller batch of an epoch.
        device: where batches are needed.
        workers: threads that read; 0: the caller does. None: one for each usable core, at most 16.
        kept_bytes: decoded images that are kept in memory.
        accumulate: parts that a batch will be cut into; with several ranks, each has a share.
    """

    def __init__(
        self,
        images: Sequence[BoxedImage],
        shorter: Sequence[int],
        longest: int,
        batch_size: int,
        seed: int,
        drop_last: bool = False,
        device: torch.device | str = "cpu",
        workers: int | None = None,
        kept_bytes: int = KEPT_BYTES,
        accumulate: int = 1,
    ) -> None:
        self.images, self.shorter, self.seed = images, shorter, seed
        self.device, self.workers = torch.device(device), workers
        self.steps = order_of(len(images), seed, batch_size, drop_last, None, None)
        self.per_epoch = self.steps.per_epoch
        self.share = Share(self.steps, accumulate)
        self._read = ShownReader(longest, kept_bytes)
        self._pool: ThreadPoolExecutor | None = None
        self._reads: Iterator[list[Shown]] | None = None
        self._next: int | None = None
        self._latest: tuple[int, list[Shown]] | None = None

    def batch(self, step: int) -> dict[str, Any]:
        """The batch of one step, with lists for what differs in size between its N images.

        ``x`` N tensors (3, H, W) uint8, ``boxes`` N tensors (n, 4), ``labels`` N tensors (n,);
        ``y`` (N,) the number n of objects of each image, ``index`` (N,) which images these are,
        ``row`` (N,) their places in the lists, by which parts of a batch find what is theirs.
        """
        if self._latest is None or self._latest[0] != step:
            self._latest = (step, self._make(step))  # kept for runs that train side by side
        images = self._latest[1]

        def sent(tensor: Tensor) -> Tensor:
            return tensor.to(self.device, non_blocking=True)

        return {
            "x": [sent(image.x) for image in images],
            "boxes": [sent(image.boxes) for image in images],
            "labels": [sent(image.labels) for image in images],
            "y": torch.tensor([len(image.labels) for image in images]),
            "index": self.share.own(self.steps.index(step)),
            "row": torch.arange(len(images)),
            **self.share.parts(len(self.steps.index(step))),
        }

    def jobs(self, step: int) -> list[Job]:
        """What is read for one step, and how."""
        index = self.steps.index(step)
        draw = generator(self.seed, "augmentation", step)
        u = torch.rand(len(index), 2, generator=draw, dtype=torch.float64)
        own = self.share.own(index).tolist(), self.share.own(u).tolist()
        return [
            Job(self.images[i], self.shorter[int(length * len(self.shorter))], flip < 0.5)
            for i, (flip, length) in zip(*own, strict=True)
        ]

    def _make(self, step: int) -> list[Shown]:
        if self._reads is None or step != self._next:
            self.close()
            self._pool = thread_pool(self.workers)
            self._reads = read_ahead(self._pool, self._read, map(self.jobs, itertools.count(step)))
        self._next = None  # unless the batch is had, reading has to be begun again
        images = next(self._reads)
        self._next = step + 1
        return images

    def close(self) -> None:
        """End the threads; a later batch starts new ones."""
        self._next = self._reads = self._latest = None
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None


def scored_images(
    images: Sequence[BoxedImage], shorter: int, longest: int, workers: int | None = None
) -> Iterator[Shown]:
    """Every image once and in order, on the CPU; neither mirrored nor kept in memory.

    Args:
        images: to be scored.
        shorter: length of the shorter side.
        longest: largest length of the longer side.
        workers: as for `DetectionFeed`.
    """
    pool = thread_pool(workers)
    ahead = 2 * usable_workers(workers)
    groups = ([Job(image, shorter)] for image in images)
    try:
        for (image,) in read_ahead(pool, ShownReader(longest, kept_bytes=0), groups, ahead):
            yield image
    finally:
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)
