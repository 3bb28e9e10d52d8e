"""Where data sets lie on disk; answers without torch."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Name = Literal["cifar10", "cifar100"]

HOST = "www.cs.toronto.edu"


@dataclass(frozen=True)
class Layout:
    """What the official release of one data set looks like on disk."""

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
    """The layout of a data set by its name."""
    if name not in LAYOUTS:
        raise ValueError(f"unknown data set {name!r}; choose one of {', '.join(LAYOUTS)}")
    return LAYOUTS[name]


def looked_in(root: Path | None = None) -> Path:
    """The folder or file that data is looked for in."""
    if root is None:
        root = Path(os.environ.get("BATCHFORMER_DATA") or "~/.cache/batchformer")
    return Path(root).expanduser()


def ensure_present_or_reachable(name: Name, root: Path | None = None, wait: float = 1.5) -> None:
    """Say what is missing before anything is loaded: data that is neither here nor to be had.

    Raises:
        FileNotFoundError: with the folder looked in, the layout expected and what to do.
    """
    if available(name, root) is not None:
        return
    place = looked_in(root)
    if place.suffix == ".npz":
        raise not_found(name, place, "the file does not exist")
    try:
        socket.create_connection((HOST, 443), timeout=wait).close()
    except OSError as error:
        raise not_found(
            name, place, f"{HOST}, to download it from, does not answer ({error})"
        ) from error


def not_found(name: str, root: Path, reason: str) -> FileNotFoundError:
    """The error for absent data."""
    layout = layout_of(name)
    return FileNotFoundError(
        f"{layout.reader} not found: looked in {root}, and {reason}.\n"
        f"Expected there: the folder {layout.folder}/ with {', '.join(layout.files)}, "
        f"or the file {name}_lt.npz.\n"
        f"To provide it: unpack {layout.archive} from https://{HOST}/~kriz/cifar.html "
        "there, or name another folder or .npz file by --data.root or by the environment variable "
        "BATCHFORMER_DATA"
    )
