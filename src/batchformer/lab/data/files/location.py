"""Where data is looked for, and how names on disk are matched; needs no torch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path


def looked_in(root: str | Path | None = None) -> Path:
    """Where data is looked for: `root`, else $BATCHFORMER_DATA, else ~/.cache/batchformer."""
    if root is None:
        root = os.environ.get("BATCHFORMER_DATA") or "~/.cache/batchformer"
    return Path(root).expanduser()


def names_in(folder: Path, folders: bool) -> list[str]:
    """Sorted names of the subfolders, or of the files, of a folder; none if it does not exist.

    Hidden ones, whose names begin with a dot, are left out.
    """
    if not folder.is_dir():
        return []
    entries = (entry for entry in folder.iterdir() if not entry.name.startswith("."))
    return sorted(entry.name for entry in entries if entry.is_dir() == folders)


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
    """The folder with one of the usual names in the data folder, or else the data folder itself."""
    place = looked_in(root)
    own = match_name(names_in(place, folders=True), usual)
    return place if own is None else place / own


class DataNotFoundError(FileNotFoundError):
    """A published set is not there; `brief` is what was looked for and how to get it."""

    def __init__(self, message: str, brief: str) -> None:
        super().__init__(message)
        self.brief = brief


def not_found(
    problem: str,
    expected: str,
    source: str,
    what: str = "folder",
    usual: str = "",
    where: str = "there",
) -> DataNotFoundError:
    """The error for a published set that is not there.

    Args:
        problem: what was looked for, and where.
        expected: the files and folders that would be right, at the place that `where` names.
        source: how to get them.
        what: kind of place that the user may name instead.
        usual: name of a folder inside the data folder that may hold the set.
    """
    also = f" (there also in a folder {usual})" if usual else ""
    message = (
        f"{problem}.\nExpected {where}: {expected}.\nTo provide it: {source}. Name another {what} "
        f"with --data.root or the environment variable BATCHFORMER_DATA{also}."
    )
    return DataNotFoundError(message, f"{problem}; {source}")
