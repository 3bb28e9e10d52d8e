"""Worker processes that read image files ahead of their use, in the order of the requests."""

from __future__ import annotations

import atexit
import os
import signal
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from batchformer.insight.optional import extra
from batchformer.lab.data.feeds.framing import Geometry
from batchformer.lab.data.files.decode import DamagedImageError, decode
from batchformer.torch_private import END_WORKERS

OnDamaged = Literal["raise", "skip"]
Request = TypeVar("Request")
Result = TypeVar("Result")
_MOST_WORKERS = 16
#: Results that each worker has ready or is reading.
PREFETCH = 2


def usable_workers(wanted: int | None) -> int:
    if wanted is not None:
        return wanted
    has_affinity = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    return min(cores, _MOST_WORKERS)


class Stream(Generic[Request, Result]):
    """An iterator over the results of requests, which worker processes read ahead.

    It can begin again with other requests; the processes stay.

    Args:
        read: turns a request into a result; it is copied into the workers.
        workers: processes that read; 0: this one reads. None: one for each usable core, at most 16.
        pinned: return results in pinned memory, to be copied to a CUDA device.
    """

    def __init__(
        self, read: Callable[[Request], Result], workers: int | None, pinned: bool = False
    ) -> None:
        self.read, self.workers, self.pinned = read, usable_workers(workers), pinned
        self._requests: _Requests[Request] = _Requests()
        self._loader: DataLoader[Result | Exception] | None = None
        self._results: Iterator[Result | Exception] | None = None

    def begin(self, requests: Iterable[Request]) -> None:
        """Read these from now on; results of earlier requests are thrown away."""
        self._requests.current = requests
        try:
            if self._loader is None:
                self._loader = self._open()
            self._results = iter(self._loader)
        except BaseException:
            self.close()
            raise

    def __iter__(self) -> Stream[Request, Result]:
        return self

    def __next__(self) -> Result:
        if self._results is None:
            raise RuntimeError("the stream has no requests yet: call begin() first")
        try:
            result = next(self._results)
            if isinstance(result, Exception):
                raise result
            return result
        except BaseException as error:  # at the end, or with a worker that may be dead
            self.close()
            if isinstance(error, (ConnectionError, EOFError)):  # it died while it sent a result
                raise RuntimeError(
                    "a worker that reads images died, often for lack of memory: use fewer workers"
                ) from error
            raise

    def close(self) -> None:
        """End the workers. The next `begin` starts new ones."""
        # An exception in flight may still hold the iterator, so dropping it would not be enough.
        shut_down = getattr(self._results, END_WORKERS, None)
        self._results = self._loader = None
        if shut_down is not None:
            shut_down()

    def _open(self) -> DataLoader[Result | Exception]:
        _open_streams.add(self)
        with extra("lab"):
            import torchvision.transforms.v2  # noqa: F401  before the fork, and so once for all
        return DataLoader(
            _ErrorsAsValues(self.read),
            sampler=self._requests,
            batch_size=None,
            collate_fn=_unchanged,
            num_workers=self.workers,
            prefetch_factor=PREFETCH if self.workers else None,
            persistent_workers=self.workers > 0,
            pin_memory=self.pinned,
            worker_init_fn=begin_worker,
            generator=torch.Generator(),  # otherwise it would draw from torch's global generator
        )


@dataclass(frozen=True)
class _ErrorsAsValues(Dataset[Any]):
    """Returns the error of an unreadable image; raising it in a worker would lose its message."""

    read: Callable[[Any], Any]

    def __getitem__(self, request: Any) -> Any:
        try:
            return self.read(request)
        except (DamagedImageError, OSError) as error:
            return error


class _Requests(Generic[Request]):
    """The current requests: a DataLoader keeps its sampler, and iterates it again later."""

    current: Iterable[Request] = ()

    def __iter__(self) -> Iterator[Request]:
        return iter(self.current)


def _unchanged(result: Any) -> Any:
    return result


def begin_worker(worker: int) -> None:
    """Ignore signals, so that the main process can save the run and then end its workers.

    A signal to the whole process group would otherwise end a worker first, and the main process
    would die of that before it could save.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    torch.set_num_threads(1)  # a fork copies torch's thread pool, but not its threads


_open_streams: weakref.WeakSet[Stream[Any, Any]] = weakref.WeakSet()


def _close_all() -> None:
    for stream in list(_open_streams):
        stream.close()


# Workers ignore SIGTERM, so the main process has to end them when it ends: multiprocessing would
# send SIGTERM and wait. This handler is registered later than its own, and so runs earlier.
atexit.register(_close_all)


# Batches of squares.


class ImageRequest(NamedTuple):
    """One batch to read: all that a worker needs, so that none holds a list of the data set."""

    samples: list[int]  # N positions in the data set
    paths: list[str]  # N paths relative to the root
    u: npt.NDArray[np.float64]  # (N, draws) float64, the columns of one geometry after the other
    total: int  # samples of the batch over all ranks


class ImageBatch(NamedTuple):
    """One batch of images, as a worker read it."""

    views: Sequence[Tensor]  # by geometry, (N, 3, S, S) uint8 images
    samples: Tensor  # (N,) int64 positions of the images in the data set
    replaced: list[tuple[str, str]]  # (path, reason) of each image that could not be read
    total: int  # samples of the batch over all ranks


@dataclass(frozen=True)
class ImageReader:
    """Reads a batch of image files and makes each image a square by every geometry.

    An image that cannot be read is an error (`raise`), or the next readable image of the batch
    takes its place (`skip`); after the last row comes the first.
    """

    root: Path
    geometries: tuple[Geometry, ...]
    on_damaged: OnDamaged = "raise"

    def __call__(self, request: ImageRequest) -> ImageBatch:
        sides = [geometry.size for geometry in self.geometries]
        count = len(request.samples)
        views = [torch.empty((count, 3, side, side), dtype=torch.uint8) for side in sides]
        samples = torch.tensor(request.samples)
        damaged: dict[int, Exception] = {}
        for row, u in enumerate(torch.from_numpy(request.u)):
            source, image = self._readable(request, row, damaged)
            samples[row] = request.samples[source]
            columns = torch.split(u, [geometry.draws for geometry in self.geometries])
            for view, geometry, own in zip(views, self.geometries, columns, strict=True):
                view[row] = self._frame(geometry, request.paths[source], image, own)
        replaced = [(request.paths[row], _found(error)) for row, error in sorted(damaged.items())]
        return ImageBatch(views, samples, replaced, request.total)

    def _readable(
        self, request: ImageRequest, row: int, damaged: dict[int, Exception]
    ) -> tuple[int, Tensor]:
        """The first row from `row` on that can be read, and its image (3, H, W)."""
        rows = len(request.samples)
        for other in (candidate % rows for candidate in range(row, row + rows)):
            if other in damaged:
                continue
            try:
                return other, decode(self.root / request.paths[other])
            except (DamagedImageError, OSError) as error:
                if self.on_damaged == "raise":
                    raise
                damaged[other] = error
        raise DamagedImageError(
            f"none of the {rows} images of a batch can be read; the first: {_found(damaged[0])}"
        )

    def _frame(self, geometry: Geometry, path: str, image: Tensor, u: Tensor) -> Tensor:
        shape = (3, geometry.size, geometry.size)
        try:
            framed = geometry(image, u)
            if framed.shape != shape or framed.dtype != torch.uint8:
                found = f"{framed.dtype} of shape {tuple(framed.shape)}"
                raise ValueError(f"its result is {found}")
        except Exception as error:
            raise RuntimeError(
                f"{self.root / path}: {geometry} could not turn the image {tuple(image.shape)} "
                f"(C, H, W) into a uint8 {shape}: {error}"
            ) from error
        return framed


def _found(error: Exception) -> str:
    """What is wrong with an image, without the advice to pass it over."""
    return str(error.args[0] if isinstance(error, DamagedImageError) else error)
