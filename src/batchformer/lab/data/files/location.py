"""Where data is looked for, how names on disk are matched, and where CIFAR lies; needs no torch."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal


def looked_in(root: str | Path | None = None) -> Path:
    """Where data is looked for: `root`, else $BATCHFORMER_DATA, else ~/.cache/batchformer."""
    if root is None:
        root = os.environ.get("BATCHFORMER_DATA") or "~/.cache/batchformer"
    return Path(root).expanduser()


def names_in(folder: Path, folders: bool) -> list[str]:
    """Sorted names of the subfolders, or of the files, of a folder; none if it does not exist."""
    if not folder.is_dir():
        return []
    return sorted(entry.name for entry in folder.iterdir() if entry.is_dir() == folders)


def match_name(there: Sequence[str], usual: Sequence[str]) -> str | None:
    """The first of the usual names that is there, as it is spelt there, or None.

    Only letters and digits are compared; case, spaces, hyphens and underscores are ignored. An
    exact match comes before others, and earlier usual names come before later ones.

    >>> match_name(["Art", "Real_World"], ["Real World", "Real"])
    'Real_World'
    """
    for name in usual:
        if name in there:
            return name
        alike = [other for other in there if _letters(other) == _letters(name)]
        if alike:
            return alike[0]
    return None


def _letters(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


def folder_named(root: str | Path | None, usual: Sequence[str]) -> Path:
    """The folder of one of the usual names where data is looked for, or else that place itself."""
    place = looked_in(root)
    own = match_name(names_in(place, folders=True), usual)
    return place if own is None else place / own


# CIFAR-10 and CIFAR-100.

Name = Literal["cifar10", "cifar100"]

HOST = "www.cs.toronto.edu"
#: Seconds within which it has to answer.
_ANSWER_S = 1.5


@dataclass(frozen=True)
class Layout:
    """The official release of one data set on disk."""

    reader: str  # class in torchvision.datasets
    archive: str
    folder: str
    files: tuple[str, ...]
    num_classes: int


LAYOUTS: dict[str, Layout] = {
    "cifar10": Layout(
        "CIFAR10",
        "cifar-10-python.tar.gz",
        "cifar-10-batches-py",
        (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch", "batches.meta"),
        10,
    ),
    "cifar100": Layout(
        "CIFAR100",
        "cifar-100-python.tar.gz",
        "cifar-100-python",
        ("train", "test", "meta"),
        100,
    ),
}


def available(name: Name, root: Path | None = None) -> Path | None:
    """The `.npz` file or official folder that `cifar_lt` would read, or None if there is none.

    Looks at file names only: nothing is opened, and torchvision is not imported.
    """
    layout = layout_of(name)
    root = looked_in(root)
    if root.suffix == ".npz":
        return root if root.is_file() else None
    for folder in (root / layout.folder, root):
        named_right = folder.name == layout.folder
        if named_right and all((folder / file).is_file() for file in layout.files):
            return folder
    npz = root / f"{name}_lt.npz"
    return npz if npz.is_file() else None


def layout_of(name: str) -> Layout:
    """The layout of `cifar10` or `cifar100`."""
    if name not in LAYOUTS:
        raise ValueError(f"unknown data set {name!r}; choose one of {', '.join(LAYOUTS)}")
    return LAYOUTS[name]


def ensure_present_or_reachable(name: Name, root: Path | None = None) -> None:
    """Check, before anything is loaded, that the data is here or can be downloaded.

    Raises:
        FileNotFoundError: says where it looked, what it expected and what to do.
    """
    if available(name, root) is not None:
        return
    place = looked_in(root)
    if place.suffix == ".npz":
        raise not_found(name, place, "the file does not exist")
    try:
        socket.create_connection((HOST, 443), timeout=_ANSWER_S).close()
    except OSError as error:
        raise not_found(
            name, place, f"the download server {HOST} does not answer ({error})"
        ) from error


def not_found(name: str, root: Path, reason: str) -> FileNotFoundError:
    """The error for CIFAR data that is not there."""
    layout = layout_of(name)
    return FileNotFoundError(
        f"{layout.reader} not found: looked in {root}, and {reason}.\n"
        f"Expected there: the folder {layout.folder}/ with {', '.join(layout.files)}, "
        f"or the file {name}_lt.npz.\n"
        f"To provide it: unpack {layout.archive} from https://{HOST}/~kriz/cifar.html "
        "there, or name another folder or .npz file by --data.root or by the environment variable "
        "BATCHFORMER_DATA"
    )
