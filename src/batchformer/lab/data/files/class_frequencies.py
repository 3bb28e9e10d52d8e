"""A training list held against the numbers of images that are published for every class."""

from __future__ import annotations

import json
from pathlib import Path

from batchformer.lab.data.files.file_lists import some
from batchformer.lab.data.files.files import ImageFiles


def require_published(published: Path, file: Path, files: ImageFiles) -> None:
    """Refuse a training list whose classes have other sizes than published, and say which.

    Args:
        published: a .json list of K numbers in label order; nothing is done where it is not there.
        file: the training list.
        files: what that list names.

    Raises:
        ValueError: they disagree, or the numbers cannot be read.
    """
    if not published.is_file():
        return
    try:
        counts = json.loads(published.read_bytes())
    except ValueError as error:
        raise ValueError(f"{published} is no complete .json file: {error}") from error
    if not isinstance(counts, list) or len(counts) != len(files.classes):
        raise ValueError(
            f"{published} is no list of {len(files.classes)} numbers, one for each class: put the "
            "published file in its place, or take it away"
        )
    pairs = enumerate(zip(files.counts.tolist(), counts, strict=True))
    other = [f"class {c} has {n} instead of {wanted}" for c, (n, wanted) in pairs if n != wanted]
    if other:
        raise ValueError(
            f"{file} and {published} disagree on the training images of {len(other)} of "
            f"{len(counts)} classes: {some(other)}. Take the published list, or take the other "
            "file away"
        )
