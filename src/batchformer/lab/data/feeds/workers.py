"""Batches read by other processes, ahead of their use and in the order of their jobs."""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from batchformer.lab.data.feeds.reading import Job, Read, Reader, begin_worker
from batchformer.lab.data.files.decode import DamagedImageError

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
