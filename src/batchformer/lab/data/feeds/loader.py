"""Batches of image files: read by workers, augmented on the device, a function of the step."""

from __future__ import annotations

import itertools
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic

import torch
from torch import Tensor

from batchformer.lab.data.feeds.framing import Geometry
from batchformer.lab.data.feeds.memory import StreamSafe
from batchformer.lab.data.feeds.order import Order, Steps, augmentation_numbers
from batchformer.lab.data.feeds.samplers import InOrder
from batchformer.lab.data.feeds.sharding import Share, scored_rows
from batchformer.lab.data.feeds.workers import (
    ImageBatch,
    ImageReader,
    ImageRequest,
    OnDamaged,
    Request,
    Result,
    Stream,
)
from batchformer.lab.data.files.decode import decode
from batchformer.lab.data.files.image_files import ImageFiles
from batchformer.lab.data.sets.images import ImageSplit
from batchformer.lab.data.transforms.base import Compose, Transform

#: Images that a worker reads at a time when a whole part is read into memory.
READ = 64
_ORIENTATION = 0x0112  # the EXIF tag
_SIDEWAYS = range(5, 9)  # its values that swap rows and columns
#: How a view of an image is made: the workers apply the geometry, the device the transform.
View = tuple[Geometry, Transform]


class ReadAheadFeed(Generic[Request, Result]):
    """Batches of files, each a function of the step; steps asked for in sequence are read ahead.

    Asking for any other step restarts the reading there. The latest batch is kept, for runs
    that train side by side on the same batches.

    Args:
        request: what to read for a step. It must not refer to the feed: the workers end as soon as
            nothing refers to the feed any more.
        read: turns a request into a result, in a worker.
    """

    def __init__(
        self,
        order: Order,
        share: Share,
        request: Callable[[int], Request],
        read: Callable[[Request], Result],
        device: torch.device | str,
        workers: int | None,
    ) -> None:
        self.order, self.share, self.device = order, share, torch.device(device)
        self.per_epoch = order.per_epoch
        self.request = request
        self._stream = Stream(read, workers, self.device.type == "cuda")
        self._next: int | None = None
        self._latest: tuple[int, dict[str, Any], StreamSafe] | None = None

    def batch(self, step: int) -> dict[str, Any]:
        """The batch of one step."""
        if self._latest is None or self._latest[0] != step:
            self._latest = None  # frees its memory before the next one is made
            batch = self._assemble(step, self._read(step))
            lists = (v if isinstance(v, list) else [v] for v in batch.values())
            made = StreamSafe(itertools.chain.from_iterable(lists), self.device)
            self._latest = step, batch, made
        _, batch, made = self._latest
        made.wait()
        return dict(batch)

    def _read(self, step: int) -> Result:
        if step != self._next:
            self._stream.begin(map(self.request, itertools.count(step)))
        self._next = None  # after an error the stream has to begin again
        result = next(self._stream)
        self._next = step + 1
        return result

    def _assemble(self, step: int, result: Result) -> dict[str, Any]:
        """The batch on the device, from what a worker read."""
        raise NotImplementedError(f"{type(self).__name__} does not implement _assemble()")

    def close(self) -> None:
        """End the workers; a later batch starts new ones."""
        self._next = self._latest = None
        self._stream.close()


class FileFeed(ReadAheadFeed[ImageRequest, ImageBatch]):
    """Augmented batches of image files.

    A batch is a function of (seed, step) alone: the same with any number of workers, and after
    resuming at any step. With several ranks, each reads its own part of the batch, with the random
    numbers that these samples have in the whole batch.

    Args:
        geometry: makes each image a square; done by the workers.
        transform: augmentation and normalisation of a whole batch; done on the device.
        order: which samples each step takes.
        workers: processes that read; 0: this one reads. None: one for each usable core, at most 16.
        on_damaged: what to do about an image that cannot be read. `raise` its error, or `skip` it:
            the next readable image of the batch takes its place, a warning names it the first
            time, and `damaged` counts how often each was replaced.
        second: geometry and transform of a second view of the same images, ``view2``, where a
            method needs one.
        accumulate: parts that a batch will be cut into; every rank has a share of each part.
    """

    def __init__(
        self,
        files: ImageFiles,
        geometry: Geometry,
        transform: Transform,
        order: Order,
        seed: int,
        device: torch.device | str = "cpu",
        workers: int | None = None,
        on_damaged: OnDamaged = "raise",
        second: View | None = None,
        accumulate: int = 1,
    ) -> None:
        share = Share(order, accumulate)
        views = [(geometry, transform)] if second is None else [(geometry, transform), second]
        geometries, transforms = zip(*views, strict=True)
        widths = [sum(part.draws for part in parts) for parts in (geometries, transforms)]

        def numbers(step: int, samples: int) -> tuple[Tensor, ...]:
            """This rank's numbers (n, draws) of a step: for all geometries, for all transforms."""
            u = augmentation_numbers(seed, step, samples, sum(widths))
            return torch.split(share.own(u), widths, dim=1)

        def request(step: int) -> ImageRequest:
            index = order.index(step)
            return _request(files, share.own(index), numbers(step, len(index))[0], len(index))

        reader = ImageReader(files.root, geometries, on_damaged)
        super().__init__(order, share, request, reader, device, workers)
        self.damaged: Counter[str] = Counter()
        self._transforms, self._numbers = transforms, numbers
        self._labels = files.labels.to(self.device)

    def _assemble(self, step: int, result: ImageBatch) -> dict[str, Any]:
        """``x`` (N, C, S, S), ``y`` (N,), ``index`` (N,), ``view2``."""
        for path, reason in result.replaced:
            if path not in self.damaged:
                message = f"{reason}. Another image of its batch takes its place"
                warnings.warn(message, RuntimeWarning, stacklevel=3)
            self.damaged[path] += 1
        _, u = self._numbers(step, result.total)
        batch = _on_device(result, u, self._transforms, self._labels)
        return {**batch, **self.share.parts(result.total)}


def evaluation_batches(
    files: ImageFiles,
    geometry: Geometry,
    transform: Transform,
    batch_size: int,
    device: torch.device | str = "cpu",
    workers: int | None = None,
    sharded: bool = False,
) -> Iterator[dict[str, Any]]:
    """Every image once and in order: ``x`` (N, C, S, S), ``y`` (N,) and ``index`` (N,).

    An image that cannot be read is an error here: a score needs all images. Nothing may be random.

    Args:
        sharded: with several ranks, read only the images of this rank, but give ``y`` of all ranks
            (:func:`~batchformer.lab.data.feeds.sharding.scored_rows`).
    """
    for name, part in (("geometry", geometry), ("transform", transform)):
        if part.draws:
            raise ValueError(
                f"nothing may be random in a test, but the {name} draws: {part}. Give one whose "
                "`draws` is 0"
            )
    steps, labels = Steps(InOrder(len(files)), batch_size), files.labels.to(device)

    def request(step: int) -> ImageRequest:
        index = steps.index(step)
        own = index[scored_rows(len(index))] if sharded else index
        return _request(files, own, _no_numbers(len(own)), len(index))

    reader = ImageReader(files.root, (geometry,))
    stream = Stream(reader, workers, labels.is_cuda)
    try:
        stream.begin(map(request, range(steps.per_epoch)))
        for step, result in enumerate(stream):
            batch = _on_device(result, _no_numbers(len(result.samples)), (transform,), labels)
            if sharded:
                batch["y"] = labels[steps.index(step).to(labels.device)]
            yield batch
    finally:
        stream.close()


def _no_numbers(samples: int) -> Tensor:
    return torch.empty(samples, 0, dtype=torch.float64)


def _request(files: ImageFiles, own: Tensor, u: Tensor, total: int) -> ImageRequest:
    """The request for the images `own` (n,), with the numbers `u` (n, draws) for geometries."""
    samples = own.tolist()
    return ImageRequest(samples, [files.paths[sample] for sample in samples], u.numpy(), total)


def _on_device(
    result: ImageBatch, u: Tensor, transforms: Sequence[Transform], labels: Tensor
) -> dict[str, Any]:
    """The batch on the device of the labels; each view is transformed by its own columns of `u`."""
    index = result.samples.to(labels.device, non_blocking=True)
    batch: dict[str, Any] = {"y": labels[index], "index": index}
    columns = torch.split(u, [transform.draws for transform in transforms], dim=1)
    names = ("x", "view2")[: len(transforms)]
    for name, images, transform, own in zip(names, result.views, transforms, columns, strict=True):
        batch[name] = transform(images.to(labels.device, non_blocking=True), own)
    return batch


# Files read into memory.


def read_all(files: ImageFiles, workers: int | None = None) -> ImageSplit:
    """Every image of a part, (N, 3, S, S) uint8, in order; all must be squares of one size."""
    side = common_side(files)
    x = torch.empty((len(files), 3, side, side), dtype=torch.uint8)
    start = 0
    for batch in evaluation_batches(files, Unchanged(side), Compose(()), READ, workers=workers):
        x[start : start + len(batch["x"])] = batch["x"]
        start += len(batch["x"])
    return ImageSplit(x, files.labels.clone())


@dataclass(frozen=True)
class Unchanged:
    """The geometry of images that have their size already."""

    size: int
    draws: ClassVar[int] = 0

    def __call__(self, image: Tensor, u: Tensor) -> Tensor:
        return image


def common_side(files: ImageFiles) -> int:
    """The side of images that are all squares of one size; only file headers are read."""
    if not len(files):
        raise ValueError("there is no image to take a size from: name a part with images")
    first, *others = files.paths
    height, width = _shape(files.root / first)
    advice = "Leave data.memory off, or resize the images to squares of one size"
    if height != width:
        raise ValueError(f"{files.root / first} is {height} x {width}, no square. {advice}")
    for path in others:
        shape = _shape(files.root / path)
        if shape != (height, width):
            raise ValueError(
                f"images differ in size: {files.root / path} is {shape[0]} x "
                f"{shape[1]}, but {first} is {height} x {width}. {advice}"
            )
    return height


def _shape(path: Path) -> tuple[int, int]:
    """Rows and columns of the decoded image, from the header of its file if possible."""
    from PIL import Image

    try:
        with Image.open(path) as image:
            sideways = image.getexif().get(_ORIENTATION) in _SIDEWAYS
            width, height = image.size
    except Exception:  # each of Pillow's readers has its own errors; `decode` names the file
        height, width = decode(path).shape[-2:]
        return int(height), int(width)
    return (width, height) if sideways else (height, width)
