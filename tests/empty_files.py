"""Files without content, which stand for images where nothing is opened."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


def touch(root: Path, *paths: str) -> Path:
    """Make empty files, and the folders above them; returns the root."""
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).touch()
    return root


def one_of_each(root: Path, domains: Iterable[str], classes: Iterable[str]) -> Path:
    """One image ``<domain>/<class>/1.jpg`` of each class in each domain."""
    names = tuple(classes)
    return touch(root, *(f"{domain}/{name}/1.jpg" for domain in domains for name in names))
