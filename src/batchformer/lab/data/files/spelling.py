"""Names on disk that publishers and people spell in several ways."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def names_in(folder: Path, folders: bool) -> list[str]:
    """Sorted names of the folders in a folder, or of its files; none where there is no folder."""
    if not folder.is_dir():
        return []
    return sorted(entry.name for entry in folder.iterdir() if entry.is_dir() == folders)


def called(there: Sequence[str], usual: Sequence[str]) -> str | None:
    """The name that is one of the usual ones, or None.

    Letters and digits count; case, spaces, hyphens and underscores do not. The spelling of the
    usual name comes before others, and earlier usual names before later ones.

    >>> called(["Art", "Real_World"], ["Real World", "Real"])
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
