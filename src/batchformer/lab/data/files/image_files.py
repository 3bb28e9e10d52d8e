"""Image files and their labels, from a folder tree, a list or a table; no image is opened."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor

from batchformer.insight.optional import extra
from batchformer.lab.data.files.file_lists import (
    labels_of,
    one_per_line,
    read_annotations,
    read_list,
    read_table,
    shorten,
)
from batchformer.lab.data.files.location import names_in

#: The largest number of folders below the root that are searched for a missing file.
_SUBFOLDERS = 50


@dataclass(frozen=True, eq=False)
class ImageFiles:
    """The image files of one part of a data set; `check_all` looks for them."""

    paths: tuple[str, ...]  # N paths relative to the root
    labels: Tensor  # (N,) int64 labels
    classes: tuple[str, ...]  # K class names in label order
    root: Path

    def __post_init__(self) -> None:
        require_one_label_each(self.labels, len(self.paths), "paths")
        outside = (self.labels < 0) | (self.labels >= len(self.classes))
        if outside.any():
            row = int(outside.nonzero()[0])
            raise ValueError(
                f"{self.paths[row]} has the label {int(self.labels[row])}, but the "
                f"{len(self.classes)} classes are 0..{len(self.classes) - 1}"
            )

    @classmethod
    def from_folder(cls, root: str | Path, allow_empty: bool = False) -> ImageFiles:
        """One class for each folder in `root`, with the images at any depth below it.

        Names, order and file types are those of torchvision's ImageFolder. Hidden files and
        folders, whose names begin with a dot, are left out: programs make them, not people.
        """
        with extra("lab"):
            from torchvision.datasets.folder import IMG_EXTENSIONS, make_dataset
        root = Path(root).expanduser()
        classes = names_in(root, folders=True)
        if not classes:
            what = "has no folders in it" if root.is_dir() else "is not a folder"
            raise FileNotFoundError(f"{root} {what}. Expected: {root}/<class>/<image>")
        numbers = {name: label for label, name in enumerate(classes)}
        start = f"{root}{os.sep}"
        every = make_dataset(str(root), numbers, IMG_EXTENSIONS, allow_empty=True)
        relative = [(path.removeprefix(start).replace(os.sep, "/"), label) for path, label in every]
        found = [(path, label) for path, label in relative if "/." not in path]
        types = f"the file types {', '.join(IMG_EXTENSIONS)}"
        if not found:
            raise FileNotFoundError(
                f"{root}: no image in any of its folders ({shorten(classes)}); looked for {types}"
            )
        odd = [ascii(path) for path, _ in found if not _is_unicode(path)]
        if odd:
            raise ValueError(
                f"{root}: the names of {len(odd)} images are not in UTF-8: {shorten(odd, most=3)}. "
                "Rename these files or their folders; the program convmv renames whole trees"
            )
        paths, labels = [path for path, _ in found], [label for _, label in found]
        advice = f"Put images into these folders (of {types}), or take the folders away"
        told = None if allow_empty else advice
        return cls._checked(paths, labels, classes, root, str(root), told)

    @classmethod
    def from_list(
        cls,
        list_file: str | Path,
        root: str | Path,
        classes: Sequence[str] | None = None,
        allow_empty: bool = False,
    ) -> ImageFiles:
        """The images that a list names: .csv, .json in COCO's format, or ``path label`` per line.

        A .csv has the columns path and label. Without `classes`, in label order, these are the
        names that occur, sorted, or all numbers up to the largest label.
        """
        file = Path(list_file).expanduser()
        readers = {".csv": read_table, ".json": read_annotations}
        entries = [*readers.get(file.suffix.lower(), read_list)(file)]
        labels, names = labels_of(file, entries, classes)
        advice = "List images of these classes, or number the others 0, 1, 2, ... without a gap"
        if set(labels) == set(range(1, max(labels, default=0) + 1)):
            advice = (
                "Labels count from 0, and these begin with 1: subtract 1 from each, in every list"
            )
        told = None if allow_empty else advice
        paths = [entry.path for entry in entries]
        return cls._checked(paths, labels, names, root, str(file), told)

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def counts(self) -> Tensor:
        """(K,) int64 number of images of each class."""
        return torch.bincount(self.labels, minlength=len(self.classes))

    def subset(self, rows: Tensor) -> ImageFiles:
        """The images at these positions (n,), in this order."""
        paths = tuple(self.paths[row] for row in rows.tolist())
        return dataclasses.replace(self, paths=paths, labels=self.labels[rows])

    def relabelled(self, labels: Tensor, classes: tuple[str, ...]) -> ImageFiles:
        """The same images with other labels (N,)."""
        return dataclasses.replace(self, labels=labels, classes=classes)

    def with_classes(self, classes: tuple[str, ...]) -> ImageFiles:
        """The same images with labels in other classes, which must include all that occur."""
        numbers = {name: label for label, name in enumerate(classes)}
        new = torch.tensor([numbers.get(name, -1) for name in self.classes])
        return self.relabelled(new[self.labels], classes)

    @classmethod
    def concatenated(cls, parts: Sequence[ImageFiles]) -> ImageFiles:
        """The images of several parts of the same classes and root."""
        if len({part.root for part in parts}) > 1:
            raise ValueError(f"paths start from {', '.join(str(p.root) for p in parts)}: name one")
        paths = tuple(path for part in parts for path in part.paths)
        labels = torch.cat([part.labels for part in parts])
        return dataclasses.replace(parts[0], paths=paths, labels=labels)

    def require_fits(self, what: str, classes: tuple[str, ...], other: ImageFiles) -> None:
        """Refuse this part if it has other classes; the error begins with `what`."""
        if self.classes != classes:
            raise ValueError(f"{what}: its classes are not those of the set")

    @property
    def content(self) -> str:
        """What stands for the images in a hash: their paths."""
        return "\n".join(self.paths)

    @cached_property
    def sha256(self) -> str:
        """SHA-256 over one ``path label`` per line, in order; the root does not matter."""
        total = hashlib.sha256()
        for path, label in zip(self.paths, self.labels.tolist(), strict=True):
            total.update(f"{path} {label}\n".encode())
        return total.hexdigest()

    def check_all(self) -> None:
        """Look for every file; raises FileNotFoundError with how many are missing."""
        check_all(self.root, self.paths)

    @classmethod
    def _checked(
        cls,
        paths: Iterable[str],
        labels: Sequence[int],
        classes: Sequence[str],
        root: str | Path,
        source: str,
        advice: str | None,
    ) -> ImageFiles:
        """The images that `source` names; there must be at least one.

        `advice` says what to do about classes without an image; None accepts them.
        """
        if not labels:
            raise ValueError(f"{source} names no images")
        y = torch.tensor(labels, dtype=torch.int64)
        files = cls(tuple(paths), y, tuple(classes), Path(root).expanduser())
        empty = without_images(files.counts, classes)
        if empty and advice is not None:
            raise ValueError(
                f"{source}: {len(empty)} of {len(classes)} classes have no image: "
                f"{shorten(empty)}. {advice}"
            )
        return files


def require_one_label_each(labels: Tensor, count: int, what: str) -> None:
    """Refuse labels that are not (count,) int64; `what` says what there are `count` of."""
    if labels.ndim != 1 or labels.dtype != torch.int64:
        raise ValueError(
            f"labels must be int64 of shape (N,), got {labels.dtype} of shape {tuple(labels.shape)}"
        )
    if len(labels) != count:
        raise ValueError(f"{count} {what} but {len(labels)} labels")


def sizes_hash(parts: Iterable[ImageFiles]) -> str:
    """SHA-256 of the sizes in bytes of all files, in order.

    It notices most changes of an image that keeps its name, and reads no file. It is for images of
    the user, who may change them: published sets stay as they are, and have millions of files.
    """
    sizes = ((part.root / path).stat().st_size for part in parts for path in part.paths)
    return hashlib.sha256("\n".join(map(str, sizes)).encode()).hexdigest()


def without_images(counts: Tensor, classes: Sequence[str]) -> list[str]:
    """Names of the classes whose count in `counts` (K,) is 0."""
    return [classes[c] for c in (counts == 0).nonzero().flatten().tolist()]


def check_all(root: Path, paths: Sequence[str]) -> None:
    """Look for all paths under `root`, by reading each folder once."""
    if not root.is_dir():
        what = "is a file, not a folder" if root.exists() else "does not exist"
        raise FileNotFoundError(f"the folder of the images, {root}, {what}: name another one")
    rows_in: defaultdict[str, list[int]] = defaultdict(list)
    for row, path in enumerate(paths):
        rows_in[path.rpartition("/")[0]].append(row)
    missing: list[int] = []
    for folder, rows in rows_in.items():
        present = _names_in(root / folder)
        absent = [row for row in rows if paths[row].rpartition("/")[2] not in present]
        # Ask again by name: some file systems find a name that is spelt differently on disk.
        missing += [row for row in absent if not (present and (root / paths[row]).is_file())]
    if missing:
        raise _not_found(root, [paths[row] for row in sorted(missing)], len(paths))


def _is_unicode(name: str) -> bool:
    """Whether a file name could be decoded; Python writes other bytes as lone surrogates."""
    return name.encode(errors="ignore").decode() == name


def _names_in(folder: Path) -> set[str]:
    try:
        with os.scandir(folder) as entries:
            return {entry.name for entry in entries if entry.is_file()}
    except (FileNotFoundError, NotADirectoryError):
        return set()


def _not_found(root: Path, missing: Sequence[str], listed: int) -> FileNotFoundError:
    advice = (
        "Name the folder that these paths start from; if it is this one, unpack the rest of the "
        "data set there or leave these lines out of the list"
    )
    below = (folder for folder in sorted(root.iterdir()) if folder.is_dir())
    for folder in (root.absolute().parent, *islice(below, _SUBFOLDERS)):
        if (folder / missing[0]).is_file():
            advice = f"The first of them is found from {folder}: name that folder"
            break
    return FileNotFoundError(
        f"{len(missing)} of {listed} images are not in {root}:\n{one_per_line(missing)}\n{advice}"
    )
