"""Batches of image files: read by workers, augmented on the device, a function of the step."""

from __future__ import annotations

import itertools
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from batchformer.data.files import ImageFiles
from batchformer.data.framing import Geometry
from batchformer.data.order import InOrder, Sampler, Shuffle, Steps
from batchformer.data.reading import Job, OnDamaged, Read, Reader
from batchformer.data.transforms.contract import Transform
from batchformer.data.workers import Stream, usable_workers
from batchformer.randomness import generator


class FileFeed:
    """Shuffled, augmented batches of image files.

    A batch is a function of (seed, step) alone: the same with any number of workers, and after
    resuming at any step. Steps asked for in sequence are read ahead; another step starts there.

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
    ) -> None:
        self.files, self.transform = files, transform
        self.device = torch.device(device)
        sampler = Shuffle(len(files), seed) if sampler is None else sampler
        self.steps = Steps(sampler, batch_size, drop_last)
        self.per_epoch = self.steps.per_epoch
        self.damaged: Counter[str] = Counter()
        self._draws = _Draws(seed, geometry.draws, transform.draws)
        self._labels = files.labels.to(self.device)
        reader = Reader(files.root, geometry, on_damaged)
        self._stream = _stream(reader, workers, prefetch, self.device)
        self._next: int | None = None

    def batch(self, step: int) -> dict[str, Any]:
        """The batch of one step: ``x`` (N, C, S, S), ``y`` (N,) and ``index`` (N,)."""
        if step != self._next:
            onward = itertools.count(step)
            self._stream.begin(_jobs(onward, self.files, self.steps, self._draws))
        self._next = None  # unless the batch is had, the stream has to be begun again
        read = next(self._stream)
        self._next = step + 1
        self._note(read)
        _, u = self._draws.at(step, len(read.samples))
        return _on_device(read, u, self.transform, self._labels)

    def close(self) -> None:
        """End the workers; a later batch starts new ones."""
        self._next = None
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
    """
    for name, part in (("geometry", geometry), ("transform", transform)):
        if part.draws:
            raise ValueError(f"nothing is random in a test, but the {name} draws: {part}")
    steps = Steps(InOrder(len(files)), batch_size)
    stream = _stream(Reader(files.root, geometry), workers, prefetch, torch.device(device))
    return _once(files, steps, transform, stream, files.labels.to(device))


def _once(
    files: ImageFiles, steps: Steps, transform: Transform, stream: Stream, labels: Tensor
) -> Iterator[dict[str, Any]]:
    """One epoch, nothing drawn."""
    nothing = _Draws(0, 0, 0)
    try:
        stream.begin(_jobs(range(steps.per_epoch), files, steps, nothing))
        for step, read in enumerate(stream):
            _, u = nothing.at(step, len(read.samples))
            yield _on_device(read, u, transform, labels)
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


def _jobs(numbers: Iterable[int], files: ImageFiles, steps: Steps, draws: _Draws) -> Iterator[Job]:
    """What to read for each of the steps."""
    for step in numbers:
        samples = steps.index(step).tolist()
        if min(samples) < 0 or max(samples) >= len(files):
            raise IndexError(
                f"step {step}: the sampler asks for images {min(samples)} to {max(samples)}, but "
                f"there are {len(files)}"
            )
        u, _ = draws.at(step, len(samples))
        yield Job(samples, [files.paths[sample] for sample in samples], u.numpy())


def _stream(reader: Reader, workers: int | None, prefetch: int, device: torch.device) -> Stream:
    return Stream(reader, usable_workers(workers), prefetch, pinned=device.type == "cuda")


def _on_device(read: Read, u: Tensor, transform: Transform, labels: Tensor) -> dict[str, Any]:
    """The batch where the labels are, transformed."""
    x = read.x.to(labels.device, non_blocking=True)
    index = read.samples.to(labels.device, non_blocking=True)
    return {"x": transform(x, u), "y": labels[index], "index": index}
