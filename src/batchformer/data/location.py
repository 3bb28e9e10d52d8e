"""Where data sets lie on disk; answers without torch."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Name = Literal["cifar10", "cifar100"]


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
