"""Batches of image files: read by workers, augmented on the device, a function of the step."""

from __future__ import annotations

import itertools
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from batchformer.lab.data.feeds.framing import Geometry
from batchformer.lab.data.feeds.order import InOrder, Order, Sampler, Share, Steps, order_of
from batchformer.lab.data.feeds.sharding import scored_rows
from batchformer.lab.data.feeds.workers import Job, OnDamaged, Read, Reader, Stream, usable_workers
from batchformer.lab.data.files.image_files import ImageFiles
from batchformer.lab.data.transforms.base import Transform
from batchformer.nn.randomness import generator

#: What makes a view of an image: its geometry, by the workers, and its transform, on the device.
View = tuple[Geometry, Transform]


class FileFeed:
    """Shuffled, augmented batches of image files.

    A batch is a function of (seed, step) alone: the same with any number of workers, and after
    resuming at any step. Steps asked for in sequence are read ahead; another step starts there.
    With several ranks each reads its own part of it, with the numbers that were drawn for it in the
    whole.

    Args:
        files: paths and labels.
        geometry: makes each image a square; done by the workers.
        transform: augmentation and normalisation of a whole batch; done on the device.
        batch_size: samples in a batch.
        seed: of the run; order and augmentation draw from it separately.
        drop_last: leave out the last, smaller batch of an epoch.
        device: where batches are made.
        workers: processes that read; 0: this one does. None: one for each usable core, at most 16.
        prefetch: batches that each worker has ready or in hand.
        sampler: order of the samples in each epoch. None: every sample once, shuffled.
        on_damaged: what to do about an image that cannot be read. `raise` its error, or `skip` it:
            the next readable image of the batch takes its place, a warning names it the first
            time, and `damaged` counts how often each was replaced.
        second: geometry and transform of a second view of the same images, ``view2``, where a
            method needs one.
        steps: which samples each step takes, in place of batch_size, drop_last and sampler.
        accumulate: parts that a batch will be cut into; with several ranks, each has a share.
    """

    def __init__(
        self,
        files: ImageFiles,
        geometry: Geometry,
        transform: Transform,
        batch_size: int,
        seed: int,
        drop_last: bool = False,
        device: torch.device | str = "cpu",
        workers: int | None = None,
        prefetch: int = 2,
        sampler: Sampler | None = None,
        on_damaged: OnDamaged = "raise",
        second: View | None = None,
        steps: Order | None = None,
        accumulate: int = 1,
    ) -> None:
        self.files = files
        self.device = torch.device(device)
        self.steps = order_of(len(files), seed, batch_size, drop_last, sampler, steps)
        self.per_epoch = self.steps.per_epoch
        self.share = Share(self.steps, accumulate)
        self.damaged: Counter[str] = Counter()
        views = [(geometry, transform)] if second is None else [(geometry, transform), second]
        self.transforms = tuple(transform for _, transform in views)
        framing = sum(geometry.draws for geometry, _ in views)
        self._draws = _Draws(seed, framing, sum(made.draws for made in self.transforms))
        self._labels = files.labels.to(self.device)
        reader = Reader(files.root, geometry, on_damaged, second[0] if second else None)
        self._stream = _stream(reader, workers, prefetch, self.device)
        self._samples: dict[int, int] = {}
        self._next: int | None = None
        self._kept: _Kept | None = None

    def batch(self, step: int) -> dict[str, Any]:
        """The batch of one step: ``x`` (N, C, S, S), ``y`` (N,), ``index`` (N,), ``view2``.

        The latest is kept, for runs that train side by side on the same batches.
        """
        if self._kept is None or self._kept.step != step:
            self._kept = None  # frees its memory before the next one is made
            self._kept = _Kept(step, self._make(step), self.device)
        return self._kept.batch()

    def _make(self, step: int) -> dict[str, Any]:
        if step != self._next:
            onward = itertools.count(step)
            self._samples.clear()
            jobs = _jobs(onward, self.files, self.steps, self._draws, self.share.own, self._samples)
            self._stream.begin(jobs)
        self._next = None  # unless the batch is had, the stream has to be begun again
        read = next(self._stream)
        self._next = step + 1
        self._note(read)
        samples = self._samples.pop(step)
        _, u = self._draws.at(step, samples)
        batch = _on_device(read, self.share.own(u), self.transforms, self._labels)
        return {**batch, **self.share.parts(samples)}

    def close(self) -> None:
        """End the workers; a later batch starts new ones."""
        self._next = self._kept = None
        self._stream.close()

    def __enter__(self) -> FileFeed:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _note(self, read: Read) -> None:
        for path, reason in read.replaced:
            if path not in self.damaged:
                words = f"{reason}. Another image of its batch takes its place"
                warnings.warn(words, RuntimeWarning, stacklevel=3)
            self.damaged[path] += 1


def evaluation_batches(
    files: ImageFiles,
    geometry: Geometry,
    transform: Transform,
    batch_size: int,
    device: torch.device | str = "cpu",
    workers: int | None = None,
    prefetch: int = 2,
    dealt: bool = False,
) -> Iterator[dict[str, Any]]:
    """Every image once and in order: ``x`` (N, C, S, S), ``y`` (N,) and ``index`` (N,).

    An image that cannot be read is an error here: scores of a part are not those of the whole.

    Args:
        files: paths and labels.
        geometry: makes each image a square, the same each time.
        transform: normalisation of a whole batch, on the device.
        batch_size: samples in a batch; the last one may be smaller.
        device: where batches are made.
        workers: as for `FileFeed`.
        prefetch: as for `FileFeed`.
        dealt: with several ranks, read the images of this one alone
            (:func:`~batchformer.lab.data.feeds.sharding.scored_rows`); ``y`` is of all.
    """
    for name, part in (("geometry", geometry), ("transform", transform)):
        if part.draws:
            raise ValueError(f"nothing is random in a test, but the {name} draws: {part}")
    steps = Steps(InOrder(len(files)), batch_size)
    stream = _stream(Reader(files.root, geometry), workers, prefetch, torch.device(device))
    return _once(files, steps, transform, stream, files.labels.to(device), dealt)


def _once(
    files: ImageFiles,
    steps: Steps,
    transform: Transform,
    stream: Stream,
    labels: Tensor,
    dealt: bool,
) -> Iterator[dict[str, Any]]:
    """One epoch, nothing drawn."""
    nothing = _Draws(0, 0, 0)

    def own(rows: Tensor) -> Tensor:
        return rows[scored_rows(len(rows))] if dealt else rows

    try:
        stream.begin(_jobs(range(steps.per_epoch), files, steps, nothing, own, {}))
        for step, read in enumerate(stream):
            _, u = nothing.at(step, len(read.samples))
            batch = _on_device(read, u, (transform,), labels)
            yield {**batch, "y": labels[steps.index(step).to(labels.device)]} if dealt else batch
    finally:
        stream.close()


@dataclass(frozen=True)
class _Draws:
    """The uniform numbers of each step: geometry takes the first columns, the transform the others.

    Args:
        seed: of the run.
        geometry: numbers that the geometry takes for each sample.
        transform: numbers that the transform takes for each sample.
    """

    seed: int
    geometry: int
    transform: int

    def at(self, step: int, samples: int) -> tuple[Tensor, Tensor]:
        """(N, geometry) and (N, transform) float64."""
        draw = generator(self.seed, "augmentation", step)
        columns = self.geometry + self.transform
        u = torch.rand(samples, columns, generator=draw, dtype=torch.float64)
        return u[:, : self.geometry], u[:, self.geometry :]


def _jobs(
    numbers: Iterable[int],
    files: ImageFiles,
    steps: Order,
    draws: _Draws,
    own: Callable[[Tensor], Tensor],
    sizes: dict[int, int],
) -> Iterator[Job]:
    """What to read for each of the steps: what is this rank's own of it; `sizes` gets the whole."""
    for step in numbers:
        index = steps.index(step)
        u, _ = draws.at(step, len(index))
        sizes[step] = len(index)
        samples, u = own(index).tolist(), own(u)
        if min(samples) < 0 or max(samples) >= len(files):
            raise IndexError(
                f"step {step}: the sampler asks for images {min(samples)} to {max(samples)}, but "
                f"there are {len(files)}"
            )
        yield Job(samples, [files.paths[sample] for sample in samples], u.numpy())


def _stream(reader: Reader, workers: int | None, prefetch: int, device: torch.device) -> Stream:
    return Stream(reader, usable_workers(workers), prefetch, pinned=device.type == "cuda")


def _on_device(
    read: Read, u: Tensor, transforms: Sequence[Transform], labels: Tensor
) -> dict[str, Any]:
    """The batch where the labels are, each view transformed by numbers of its own."""
    index = read.samples.to(labels.device, non_blocking=True)
    batch: dict[str, Any] = {"y": labels[index], "index": index}
    columns = torch.split(u, [transform.draws for transform in transforms], dim=1)
    views = {"x": read.x} if read.view2 is None else {"x": read.x, "view2": read.view2}
    for (name, images), transform, own in zip(views.items(), transforms, columns, strict=True):
        batch[name] = transform(images.to(labels.device, non_blocking=True), own)
    return batch


class _Kept:
    """A batch, and on a GPU what other streams have to wait for before they use it."""

    def __init__(self, step: int, batch: dict[str, Any], device: torch.device) -> None:
        self.step, self._batch, self._device = step, batch, device
        self._ready: torch.cuda.Event | None = None
        if device.type == "cuda":
            self._ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._ready.record(torch.cuda.current_stream(device))

    def batch(self) -> dict[str, Any]:
        """The batch, ready for the stream of the caller."""
        if self._ready is not None:
            user = torch.cuda.current_stream(self._device)
            user.wait_event(self._ready)
            for value in self._batch.values():
                if isinstance(value, Tensor):
                    value.record_stream(user)
        return dict(self._batch)
