"""Batches read by other processes, ahead of their use and in the order of their jobs."""

from __future__ import annotations

import atexit
import os
import signal
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from batchformer.lab.data.feeds.framing import Geometry
from batchformer.lab.data.files.decode import DamagedImageError, decode

# What a worker does: the files of one batch to one tensor, as a function of its job alone.

OnDamaged = Literal["raise", "skip"]


class Job(NamedTuple):
    """One batch to read: all that a worker needs, so that it holds no list of the data set.

    Args:
        samples: N positions in the data set.
        paths: N paths relative to the root.
        u: (N, draws) float64 uniform numbers, the first for the geometry, the rest for the second.
    """

    samples: list[int]
    paths: list[str]
    u: npt.NDArray[np.float64]


class Read(NamedTuple):
    """One batch read.

    Args:
        x: (N, 3, S, S) uint8 images.
        samples: (N,) int64 positions in the data set of the images that are in `x`.
        replaced: (path, reason) of each image that could not be read.
        view2: (N, 3, S, S) uint8 the same images framed a second time, where that is wanted.
    """

    x: Tensor
    samples: Tensor
    replaced: list[tuple[str, str]]
    view2: Tensor | None = None


@dataclass(frozen=True)
class Reader(Dataset[Read]):
    """A data set whose items are whole batches.

    Args:
        root: folder that paths start from.
        geometry: makes each image a square.
        on_damaged: `raise` the error of an image that cannot be read, or `skip` it: the next image
            of the batch that can be read takes its place, after the last one the first.
        second: makes another square of each image, by numbers of its own; None: one is enough.
    """

    root: Path
    geometry: Geometry
    on_damaged: OnDamaged = "raise"
    second: Geometry | None = None

    def __post_init__(self) -> None:
        if self.on_damaged not in get_args(OnDamaged):
            choices = " or ".join(map(repr, get_args(OnDamaged)))
            raise ValueError(f"on_damaged must be {choices}, got {self.on_damaged!r}")

    def __getitem__(self, job: Job) -> Read:
        x = _squares(len(job.samples), self.geometry)
        view2 = None if self.second is None else _squares(len(job.samples), self.second)
        samples = torch.tensor(job.samples)
        damaged: dict[int, Exception] = {}
        for row, u in enumerate(torch.from_numpy(job.u)):
            taken, image = self._readable(job, row, damaged)
            samples[row] = job.samples[taken]
            first = self.geometry.draws
            x[row] = self._frame(self.geometry, job.paths[taken], image, u[:first])
            if view2 is not None and self.second is not None:
                view2[row] = self._frame(self.second, job.paths[taken], image, u[first:])
        replaced = [(job.paths[row], str(error)) for row, error in sorted(damaged.items())]
        return Read(x, samples, replaced, view2)

    def _readable(self, job: Job, row: int, damaged: dict[int, Exception]) -> tuple[int, Tensor]:
        """The first row from `row` on that can be read, and its image (3, H, W)."""
        rows = len(job.samples)
        for other in (candidate % rows for candidate in range(row, row + rows)):
            if other in damaged:
                continue
            try:
                return other, decode(self.root / job.paths[other])
            except (DamagedImageError, OSError) as error:
                if self.on_damaged == "raise":
                    raise
                damaged[other] = error
        raise DamagedImageError(
            f"none of the {rows} images of a batch can be read; the first: {damaged[0]}"
        )

    def _frame(self, geometry: Geometry, path: str, image: Tensor, u: Tensor) -> Tensor:
        try:
            framed = geometry(image, u)
        except Exception as error:
            raise RuntimeError(self._failed(geometry, path, image, str(error))) from error
        if framed.shape != (3, geometry.size, geometry.size) or framed.dtype != torch.uint8:
            result = f"its result is {framed.dtype} of shape {tuple(framed.shape)}"
            raise RuntimeError(self._failed(geometry, path, image, result))
        return framed

    def _failed(self, geometry: Geometry, path: str, image: Tensor, reason: str) -> str:
        size = geometry.size
        return (
            f"{self.root / path}: {geometry} could not make the image "
            f"{tuple(image.shape)} (C, H, W) a uint8 (3, {size}, {size}): {reason}"
        )


def _squares(count: int, geometry: Geometry) -> Tensor:
    """Memory for so many images."""
    return torch.empty((count, 3, geometry.size, geometry.size), dtype=torch.uint8)


def begin_worker(worker: int) -> None:
    """Leave signals to the main process, which saves the run and then ends its workers.

    A signal to the whole process group would otherwise end a worker first, and the main process
    would die of that before it could save.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    torch.set_num_threads(1)  # a forked process has none of the threads that its copy knows of


# Batches read by other processes, ahead of their use and in the order of their jobs.

_MOST = 16


def usable_workers(wanted: int | None) -> int:
    """As many as wanted, or where that is None one for each core that may be used, at most 16."""
    if wanted is not None:
        return wanted
    has_affinity = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    return min(cores, _MOST)


class Stream:
    """A run of batches that can be begun anew with other jobs; the processes stay.

    Args:
        reader: turns a job into a batch.
        workers: processes that read; 0: the calling process does.
        prefetch: batches that each worker has ready or in hand.
        pinned: hand batches over in pinned memory, to be copied to a CUDA device.
    """

    def __init__(self, reader: Reader, workers: int, prefetch: int, pinned: bool) -> None:
        self.reader, self.workers = reader, workers
        self.prefetch, self.pinned = prefetch, pinned
        self._jobs = _Jobs()
        self._loader: DataLoader[Read | Exception] | None = None
        self._reads: Iterator[Read | Exception] | None = None

    def begin(self, jobs: Iterable[Job]) -> None:
        """Read these from now on; what was begun before is thrown away."""
        self._jobs.now = jobs
        try:
            if self._loader is None:
                self._loader = self._open()
            self._reads = iter(self._loader)
        except BaseException:
            self.close()
            raise

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Read:
        """The next batch."""
        if self._reads is None:
            raise RuntimeError("begin() comes before the first batch")
        try:
            read = next(self._reads)
            if isinstance(read, Exception):
                raise read
            return read
        except BaseException as error:  # at the end, or with a worker that may be dead
            self.close()
            if isinstance(error, (ConnectionError, EOFError)):  # it died while it handed over
                raise RuntimeError(
                    "a worker that reads images died, often for lack of memory: take fewer "
                    "workers, or let them read ahead less (prefetch)"
                ) from error
            raise

    def close(self) -> None:
        """End the workers. The next `begin` starts new ones."""
        # An exception in flight may still hold the iterator, so dropping it would not be enough.
        shut_down = getattr(self._reads, "_shutdown_workers", None)
        self._reads = self._loader = None
        if shut_down is not None:
            shut_down()

    def _open(self) -> DataLoader[Read | Exception]:
        _open_streams.add(self)
        try:
            import torchvision.transforms.v2  # noqa: F401  before the fork, and so once for all
        except ImportError as error:
            needs = "image files are read by torchvision: pip install 'batchformer[lab]'"
            raise ImportError(needs) from error
        return DataLoader(
            _Careful(self.reader),
            sampler=self._jobs,
            batch_size=None,
            collate_fn=_as_it_is,
            num_workers=self.workers,
            prefetch_factor=self.prefetch if self.workers else None,
            persistent_workers=self.workers > 0,
            pin_memory=self.pinned,
            worker_init_fn=begin_worker,
            generator=torch.Generator(),  # else it would draw from torch's own
        )


@dataclass(frozen=True)
class _Careful(Dataset["Read | Exception"]):
    """Hands an unreadable image over as a value: raised in a worker, its words would be lost in a
    traceback of the worker's."""

    reader: Reader

    def __getitem__(self, job: Job) -> Read | Exception:
        try:
            return self.reader[job]
        except (DamagedImageError, OSError) as error:
            return error


class _Jobs:
    """The jobs of now: a loader takes its sampler when it is made, and iterates it again later."""

    now: Iterable[Job] = ()

    def __iter__(self) -> Iterator[Job]:
        return iter(self.now)


def _as_it_is(read: Any) -> Any:
    return read


_open_streams: weakref.WeakSet[Stream] = weakref.WeakSet()


def _close_all() -> None:
    for stream in list(_open_streams):
        stream.close()


# Workers leave SIGTERM to the main process, so that it has to end them when it ends itself:
# multiprocessing would send them SIGTERM and wait. Registered later, this comes before that.
atexit.register(_close_all)
