"""Whether the images of a list are on disk, and what to say where they are not."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

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
