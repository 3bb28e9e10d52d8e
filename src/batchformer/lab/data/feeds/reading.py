"""What a worker does: the files of one batch to one tensor, as a function of its job alone."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset

from batchformer.lab.data.feeds.framing import Geometry
from batchformer.lab.data.files.decode import DamagedImageError, decode

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
