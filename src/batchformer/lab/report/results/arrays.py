"""The arrays a run keeps for its figures, read one at a time."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from batchformer.lab.runs.folder import ONCE_AVERAGED

if TYPE_CHECKING:
    from numpy.typing import NDArray

# What zipfile and numpy raise on a file that was cut or changed; RuntimeError covers flags and
# compressions that no intact file of ours has.
UNREADABLE = (OSError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)


class Arrays(Mapping[str, "NDArray[Any]"]):
    """The arrays of an ``.npz`` file; an array that cannot be read is not in it.

    Nothing stays open and nothing is kept: a report of a hundred runs holds no confusion matrix.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def __getitem__(self, name: str) -> NDArray[Any]:
        import numpy as np

        try:
            # As np.load does, which leaves a damaged file open.
            with zipfile.ZipFile(self.path) as archive, archive.open(f"{name}.npy") as file:
                array: NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
                return array
        except UNREADABLE as error:
            raise KeyError(name) from error

    def __iter__(self) -> Iterator[str]:
        try:
            with zipfile.ZipFile(self.path) as archive:
                return iter([name.removesuffix(".npy") for name in archive.namelist()])
        except UNREADABLE:
            return iter(())

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def problem(self) -> str | None:
        """What is wrong with the file, by its checksums, or None."""
        try:
            with zipfile.ZipFile(self.path) as archive:
                damaged = archive.testzip()
        except FileNotFoundError:
            return f"{self.path.name} is missing"
        except UNREADABLE as error:
            return f"{self.path.name} is damaged: {error}"
        return None if damaged is None else f"{self.path.name} is damaged: {damaged}"


class Figures(Arrays):
    """The arrays of a ``figures.npz``; with SWAD, by the averaged network in older files too."""

    def __getitem__(self, name: str) -> NDArray[Any]:
        try:
            return super().__getitem__(ONCE_AVERAGED + name)
        except KeyError:
            return super().__getitem__(name)
