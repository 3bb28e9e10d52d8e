"""Where images with boxes lie on disk, in the folders of Pascal VOC; needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from batchformer.lab.data.files.file_lists import one_per_line
from batchformer.lab.data.files.location import looked_in


def folder_of(root: str | None) -> Path:
    """The folder of ``VOC2007`` and others: `root`, or ``VOCdevkit`` where data is looked for."""
    return Path(root).expanduser() if root else looked_in() / "VOCdevkit"


def list_file(root: str | None, name: str) -> Path:
    """The file of a list of images such as ``2007/trainval``.

    >>> str(list_file("/data/VOCdevkit", "2007/trainval"))
    '/data/VOCdevkit/VOC2007/ImageSets/Main/trainval.txt'
    """
    year, part = name.split("/")
    return folder_of(root) / f"VOC{year}" / "ImageSets" / "Main" / f"{part}.txt"


def present(root: str | None, lists: Sequence[str]) -> bool:
    """Whether these lists of images exist."""
    return all(list_file(root, name).is_file() for name in lists)


def ensure_present(root: str | None, lists: Sequence[str]) -> None:
    """Check that these lists of images exist before anything is loaded.

    Raises:
        FileNotFoundError: says what it looked for, what it expected and what to do.
    """
    missing = [list_file(root, name) for name in lists if not list_file(root, name).is_file()]
    if missing:
        raise FileNotFoundError(
            f"Lists of images not found:\n{one_per_line(missing)}\n"
            f"Expected in {folder_of(root)}: VOC<year>/JPEGImages/<image>.jpg, "
            "VOC<year>/Annotations/<image>.xml and VOC<year>/ImageSets/Main/<list>.txt.\n"
            "To provide it: unpack the archives of http://host.robots.ox.ac.uk/pascal/VOC there, "
            "or name another folder VOCdevkit with --data.root and your own lists with "
            "--data.trained-on and --data.scored-on."
        )
