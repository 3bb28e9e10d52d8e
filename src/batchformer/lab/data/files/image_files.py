"""Image files on disk and their labels: a folder tree, a list or a table; no image is opened."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from batchformer.lab.data.files import location as presence
from batchformer.lab.data.files.file_lists import (
    by_name_or_number,
    by_number,
    read_annotations,
    read_list,
    read_table,
    shorten,
)


@dataclass(frozen=True, eq=False)
class ImageFiles:
    """Images of one part of a data set, by their files.

    A sample of the files is looked for at once, so that a wrong root is found before a run begins;
    `check_all` looks for every one.

    Args:
        paths: N paths relative to the root.
        labels: (N,) int64 labels.
        classes: K class names in label order.
        root: folder that the paths start from.
    """

    paths: tuple[str, ...]
    labels: Tensor
    classes: tuple[str, ...]
    root: Path

    def __post_init__(self) -> None:
        if self.labels.ndim != 1 or self.labels.dtype != torch.int64:
            raise ValueError(
                f"labels must be int64 of shape (N,), got {self.labels.dtype} of shape "
                f"{tuple(self.labels.shape)}"
            )
        if len(self.paths) != len(self.labels):
            raise ValueError(f"{len(self.paths)} paths but {len(self.labels)} labels")
        outside = (self.labels < 0) | (self.labels >= len(self.classes))
        if outside.any():
            row = int(outside.nonzero()[0])
            raise ValueError(
                f"{self.paths[row]} has the label {int(self.labels[row])}, but the "
                f"{len(self.classes)} classes are 0..{len(self.classes) - 1}"
            )
        presence.check_some(self.root, self.paths)

    @classmethod
    def from_folder(cls, root: str | Path, allow_empty: bool = False) -> ImageFiles:
        """A class for each folder in `root`, with the images at any depth in it.

        Names, order and file types are those of torchvision's ImageFolder.

        Args:
            root: folder of the class folders.
            allow_empty: accept classes without an image.
        """
        try:
            from torchvision.datasets.folder import IMG_EXTENSIONS, make_dataset
        except ImportError as error:
            needs = "folders of images are read by torchvision: pip install 'batchformer[lab]'"
            raise ImportError(needs) from error
        root = Path(root).expanduser()
        classes = sorted(f.name for f in root.iterdir() if f.is_dir()) if root.is_dir() else []
        if not classes:
            what = "has no folders in it" if root.is_dir() else "is not a folder"
            raise FileNotFoundError(f"{root} {what}. Expected: {root}/<class>/<image>")
        numbers = {name: label for label, name in enumerate(classes)}
        found = make_dataset(str(root), numbers, IMG_EXTENSIONS, allow_empty=True)
        if not found:
            raise FileNotFoundError(
                f"{root}: no image in any of its folders ({shorten(classes)}); looked for the file "
                f"types {', '.join(IMG_EXTENSIONS)}"
            )
        start = f"{root}{os.sep}"
        paths = (path.removeprefix(start).replace(os.sep, "/") for path, _ in found)
        labels = [label for _, label in found]
        advice = "Put images into these folders, or take the folders away"
        return cls._made(paths, labels, classes, root, str(root), None if allow_empty else advice)

    @classmethod
    def from_list(
        cls,
        list_file: str | Path,
        root: str | Path,
        classes: Sequence[str] | None = None,
        allow_empty: bool = False,
    ) -> ImageFiles:
        """A text file with one image a line: its path, white space, its label as a number.

        Paths may have spaces in them; blank lines are passed over. A .json file is read in the
        manner of COCO: images with id and file_name, annotations with image_id and category_id.

        Args:
            list_file: the text file, UTF-8.
            root: folder that the paths start from.
            classes: names in label order. None: all numbers up to the largest label.
            allow_empty: accept classes without an image.
        """
        file = Path(list_file).expanduser()
        entries = (read_annotations if file.suffix == ".json" else read_list)(file)
        labels, names = by_number(entries, classes)
        advice = None if allow_empty else _on_listed(labels)
        return cls._made(entries.paths, labels, names, root, entries.source, advice)

    @classmethod
    def from_csv(
        cls,
        table: str | Path,
        root: str | Path,
        path_column: str = "path",
        label_column: str = "label",
        classes: Sequence[str] | None = None,
        allow_empty: bool = False,
    ) -> ImageFiles:
        """A comma-separated table with a header, one image a row.

        Labels that are all names in `classes`, or not all numbers, are class names; otherwise they
        are the labels themselves.

        Args:
            table: the file, UTF-8.
            root: folder that the paths start from.
            path_column: name of the column of paths.
            label_column: name of the column of labels.
            classes: names in label order. None: the names that occur, sorted, or all numbers up
                to the largest label.
            allow_empty: accept classes without an image.
        """
        entries = read_table(Path(table).expanduser(), path_column, label_column)
        labels, names = by_name_or_number(entries, classes)
        advice = None if allow_empty else _on_listed(labels)
        return cls._made(entries.paths, labels, names, root, entries.source, advice)

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def counts(self) -> Tensor:
        """(K,) int64 number of images of each class."""
        return torch.bincount(self.labels, minlength=len(self.classes))

    def check_all(self) -> None:
        """Look for every file; raises FileNotFoundError with how many are missing."""
        presence.check_all(self.root, self.paths)

    @classmethod
    def _made(
        cls,
        paths: Iterable[str],
        labels: Sequence[int],
        classes: Sequence[str],
        root: str | Path,
        source: str,
        advice: str | None,
    ) -> ImageFiles:
        """What `source` says, if it has images.

        Args:
            advice: what to do where a class has no image; None where that may be.
        """
        if not labels:
            raise ValueError(f"{source} names no images")
        y = torch.tensor(labels, dtype=torch.int64)
        files = cls(tuple(paths), y, tuple(classes), Path(root).expanduser())
        empty = [classes[c] for c in (files.counts == 0).nonzero().flatten().tolist()]
        if empty and advice is not None:
            raise ValueError(
                f"{source}: {len(empty)} of {len(classes)} classes have no image: "
                f"{shorten(empty)}. "
                f"{advice}"
            )
        return files


def _on_listed(labels: Sequence[int]) -> str:
    """What to do about classes that a list has no image of."""
    if set(labels) == set(range(1, max(labels, default=0) + 1)):
        return "Labels count from 0, and these begin with 1: take 1 from each, in every list"
    return "List images of these classes, or number the others 0, 1, 2, ... without a gap"
