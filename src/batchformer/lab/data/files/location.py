"""Where data sets lie on disk, how names on disk are spelled, and whether images are present."""

from __future__ import annotations

import os
import socket
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

# Where data sets lie on disk; answers without torch.

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


# Names on disk that publishers and people spell in several ways.


def names_in(folder: Path, folders: bool) -> list[str]:
    """Sorted names of the folders in a folder, or of its files; none where there is no folder."""
    if not folder.is_dir():
        return []
    return sorted(entry.name for entry in folder.iterdir() if entry.is_dir() == folders)


def match_name(there: Sequence[str], usual: Sequence[str]) -> str | None:
    """The name that is one of the usual ones, or None.

    Letters and digits count; case, spaces, hyphens and underscores do not. The spelling of the
    usual name comes before others, and earlier usual names before later ones.

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


# Whether the images of a list are on disk, and what to say where they are not.

SAMPLED = 64  # looked at where not all are: a wrong root shows at the first one
_NAMED = 5
_SUBFOLDERS = 50


def check_some(root: Path, paths: Sequence[str]) -> None:
    """Look for the first, the last and some evenly spaced paths under `root`.

    Raises:
        FileNotFoundError: with how many are missing, the first of them and what to do.
    """
    _check_root(root)
    spaces = max(min(SAMPLED, len(paths)) - 1, 1)
    rows = sorted({k * (len(paths) - 1) // spaces for k in range(spaces + 1)}) if paths else []
    missing = [paths[row] for row in rows if not (root / paths[row]).is_file()]
    if missing:
        looked = f"the {len(rows)} images looked for (out of {len(paths)})"
        raise _not_found(root, missing, looked)


def check_all(root: Path, paths: Sequence[str]) -> None:
    """Look for all paths under `root`, by reading each folder once.

    Raises:
        FileNotFoundError: with how many are missing, the first of them and what to do.
    """
    _check_root(root)
    rows_in: defaultdict[str, list[int]] = defaultdict(list)
    for row, path in enumerate(paths):
        rows_in[path.rpartition("/")[0]].append(row)
    missing: list[int] = []
    for folder, rows in rows_in.items():
        present = _names_in(root / folder)
        missing += [row for row in rows if paths[row].rpartition("/")[2] not in present]
    # Asked again by name: some file systems find a name that is spelt differently on disk.
    missing = sorted(row for row in missing if not (root / paths[row]).is_file())
    if missing:
        raise _not_found(root, [paths[row] for row in missing], f"{len(paths)} images")


def _names_in(folder: Path) -> set[str]:
    try:
        with os.scandir(folder) as entries:
            return {entry.name for entry in entries if entry.is_file()}
    except (FileNotFoundError, NotADirectoryError):
        return set()


def _check_root(root: Path) -> None:
    if not root.is_dir():
        what = "is a file, not a folder" if root.exists() else "does not exist"
        raise FileNotFoundError(f"the folder of the images, {root}, {what}: name another one")


def _not_found(root: Path, missing: Sequence[str], looked: str) -> FileNotFoundError:
    named = "\n".join(f"  {path}" for path in missing[:_NAMED])
    more = f"\n  and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
    better = _where_it_is(root, missing[0])
    if better is not None:
        advice = f"The first of them is found from {better}: name that folder"
    else:
        advice = (
            "Name the folder that these paths start from; if it is this one, unpack the rest of "
            "the data set there or leave these lines out of the list"
        )
    return FileNotFoundError(
        f"{len(missing)} of {looked} are not in {root}:\n{named}{more}\n{advice}"
    )


def _where_it_is(root: Path, path: str) -> Path | None:
    """A neighbouring folder from which the path can be found."""
    below = (folder for folder in sorted(root.iterdir()) if folder.is_dir())
    for folder in (root.absolute().parent, *islice(below, _SUBFOLDERS)):
        if (folder / path).is_file():
            return folder
    return None
