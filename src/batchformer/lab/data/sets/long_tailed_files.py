"""Data sets of image files, most of them long-tailed: known ones, and the user's own."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from batchformer.lab.data.files.file_lists import shorten
from batchformer.lab.data.files.image_files import ImageFiles, without_images
from batchformer.lab.data.files.location import match_name, names_in
from batchformer.lab.data.sets.image_layouts import (
    ANNOTATED,
    Annotated,
    Lists,
    ensure_imagenet,
    ensure_lists,
    imagenet_folder,
)
from batchformer.lab.data.sets.images import LongTailedData
from batchformer.nn.randomness import generator

#: Names of the folders of training and of test images, in the order they are looked for; case does
#: not matter.
TRAIN_FOLDERS = ("train", "training")
TEST_FOLDERS = ("test", "testing", "val", "valid", "validation")
#: Share of each class that is tested on when one tree is split.
TEST_SHARE = 0.2


@dataclass(frozen=True, eq=False)
class LongTailedFiles(LongTailedData[ImageFiles]):
    """A long-tailed training part, in which every class has an image, and a test part, as files."""

    split_seed: int | None = None  # seed that split one tree; None if the parts were given

    @property
    def untested(self) -> list[str]:
        """Names of the classes without a test image."""
        return without_images(self.test.counts, self.classes)

    @cached_property
    def trained_on(self) -> list[str]:
        """Paths of the test images that are training images too, as lists may name them."""

        def file(part: ImageFiles, path: str) -> str:
            return os.path.normpath(part.root.absolute() / path)

        # Few names occur in both parts of a large set, and only those are compared in full.
        names = {path.rpartition("/")[2] for path in self.test.paths}
        train = (path for path in self.train.paths if path.rpartition("/")[2] in names)
        known = {file(self.train, path) for path in train}
        return [path for path in self.test.paths if file(self.test, path) in known]

    @property
    def remarks(self) -> tuple[str, ...]:
        """What the user should know before the data is used, one per line."""
        lines = []
        if self.split_seed is not None:
            lines.append(
                f"one tree of classes, without folders train and test: {TEST_SHARE:.0%} of each "
                f"class are held out as the test set, {len(self.test):,} of "
                f"{len(self.train) + len(self.test):,} images, drawn by data.seed "
                f"{self.split_seed} (split {self.split_sha256[:12]})"
            )
        if self.untested:
            lines.append(
                f"{len(self.untested)} of {len(self.classes)} classes have training images and no "
                f"test image, so no score covers them: {shorten(self.untested)}"
            )
        if self.trained_on:
            lines.append(
                f"{len(self.trained_on):,} of {len(self.test):,} test images are training images "
                f"too, so scores are not of new images: {shorten(self.trained_on)}"
            )
        return (*lines, *self.repeats)

    @cached_property
    def repeats(self) -> tuple[str, ...]:
        """What to know of images that a list names several times."""
        lines = []
        for kind, part in (("training", self.train), ("test", self.test)):
            times = Counter(part.paths)
            again = [path for path, count in times.items() if count > 1]
            if again:
                labelled = {*zip(part.paths, part.labels.tolist(), strict=True)}
                labels = Counter(path for path, _ in labelled)
                several = sum(labels[path] > 1 for path in again)
                lines.append(
                    f"{len(again):,} of {len(times):,} {kind} images are listed more than once, "
                    f"{several:,} of them with several labels: {shorten(again)}"
                )
        return tuple(lines)

    def check_all(self) -> None:
        """Look for every file; a missing one would otherwise end a run in the middle."""
        for part in filter(None, (self.train, self.test, self.val)):
            part.check_all()


def with_at_most(data: LongTailedFiles, per_class: int, seed: int) -> LongTailedFiles:
    """The data with at most `per_class` training images of each class; 0 keeps all of them.

    Images are taken in one order that is drawn from the seed and does not depend on `per_class`, so
    that a smaller set is contained in a larger one. The test part stays complete.
    """
    if not per_class:
        return data
    train = data.train
    order = torch.randperm(len(train), generator=generator(seed, "split"))
    by_class = order[train.labels[order].argsort(stable=True)]
    classes = torch.split(by_class, train.counts.tolist())
    rows = torch.cat([own[:per_class] for own in classes]).sort().values
    return dataclasses.replace(data, train=train.subset(rows))


def annotated(name: str, lists: Lists, with_val: bool = False) -> LongTailedFiles:
    """A known data set by its name; lists of other sizes are refused."""
    ensure_lists(name, lists)
    known = ANNOTATED[name]
    numbers = [str(label) for label in range(known.classes)]
    train = ImageFiles.from_list(lists.train, lists.root, numbers)
    _require_known(known, lists.train, train)
    for place in dict.fromkeys((lists.train.parent, lists.root)):
        require_published(place / known.frequencies, lists.train, train)
    test = ImageFiles.from_list(lists.test, lists.root, numbers, allow_empty=True)
    _require_one_of((known.tested, known.validated), known, lists.test, test)
    val = None
    if with_val:
        val = ImageFiles.from_list(lists.val, lists.root, numbers, allow_empty=True)
        _require_one_of((known.validated,), known, lists.val, val)
    names = class_names(train)
    train, test = (dataclasses.replace(part, classes=names) for part in (train, test))
    val = val and dataclasses.replace(val, classes=names)
    return LongTailedFiles(train, test, names, known.title, val)


def class_names(files: ImageFiles) -> tuple[str, ...]:
    """K class names: the folders of a class's first image, without the folder of its part.

    ``train/n01440764/n01440764_762.JPEG`` is of the class n01440764; a class without such an image
    keeps its name.
    """
    found: dict[int, str] = {}
    for path, label in zip(files.paths, files.labels.tolist(), strict=True):
        folders = path.split("/")[1:-1]
        if folders:
            found.setdefault(label, "/".join(folders))
    return tuple(found.get(label, name) for label, name in enumerate(files.classes))


def imagenet(root: str | None = None) -> LongTailedFiles:
    """ImageNet: folders of classes in ``train`` and ``val``; scores are measured on ``val``.

    Any number of classes is accepted, so that a subset of ImageNet works too.
    """
    ensure_imagenet(root)
    place = imagenet_folder(root)
    train = ImageFiles.from_folder(place / "train")
    # The folder "test" of ImageNet has no labels.
    val = ImageFiles.from_folder(place / "val", True)
    test = _with_classes(val, train.classes)
    return LongTailedFiles(train, test, train.classes, "ImageNet")


def own_files(
    root: str | Path | None = None,
    train_list: str | None = None,
    test_list: str | None = None,
    seed: int = 0,
) -> LongTailedFiles:
    """The user's own images: class folders, in two parts or in one tree, or two lists.

    Classes are those of the training part; `remarks` names those without a test image.

    Args:
        root: holds ``train/<class>/<image>`` and ``test/`` or ``val/`` like it, or
            ``<class>/<image>`` alone, which is split here; with lists, the folder that their
            paths start from, by default that of each list.
        train_list: ``.csv`` with the columns path and label, or ``path label`` per line.
    """
    if (train_list is None) != (test_list is None):
        raise ValueError(
            "Training and test images are both listed or both in folders: give --data.train-list "
            "and --data.test-list, or neither."
        )
    if train_list is not None and test_list is not None:
        train = _listed(Path(train_list), root)
        test = _listed(Path(test_list), root, train.classes)
        name = Path(train_list).stem
    elif root is None:
        raise FileNotFoundError(
            "Whose images? Name a folder with train/<class>/<image> and test/<class>/<image> by "
            "--data.root, or two lists by --data.train-list and --data.test-list."
        )
    else:
        place = Path(root).expanduser()
        name = place.resolve().name
        if (tree := _one_tree(place)) is not None:
            return LongTailedFiles(*split_tree(tree, seed), tree.classes, name, split_seed=seed)
        parts = _part_folders(place)
        train = ImageFiles.from_folder(parts[0])
        test = _with_classes(ImageFiles.from_folder(parts[1], True), train.classes)
    return LongTailedFiles(train, test, train.classes, name)


def _one_tree(root: Path) -> ImageFiles | None:
    """The images of a folder of classes without folders train and test; None for other folders."""
    whole = root.resolve()
    trains, tests = _parts(whole.parent)
    if trains and tests and whole in (*trains, *tests):
        raise FileNotFoundError(
            f"{root} is one of the folders train and test that belong together. Did you mean the "
            f"folder above? --data.root {root.parent if root.name == whole.name else whole.parent}"
        )
    if not root.is_dir() or any(_parts(root)):
        return None
    try:
        tree = ImageFiles.from_folder(root)
    except FileNotFoundError:  # no classes, or no images in them
        return None
    if alike := _same_subfolders(tree):
        raise ValueError(
            f"{root}: its folders ({shorten(tree.classes)}) have no images beside their "
            f"subfolders, which are the same in each: {shorten(alike)}. If the folders are "
            "domains, use the recipe my_domains. If they are classes, make a folder train and a "
            "folder test of them, or name two lists with --data.train-list and --data.test-list"
        )
    return tree if len(tree.classes) > 1 and int(tree.counts.max()) > 1 else None


def _same_subfolders(tree: ImageFiles) -> list[str]:
    """Two or more subfolders that every class has and that hold all images; else an empty list."""
    below: dict[str, set[str]] = {}
    for path in tree.paths:
        name, *folders, _ = path.split("/")
        below.setdefault(name, set()).add(folders[0] if folders else "")
    first, *others = below.values()
    alike = others and "" not in first and all(own == first for own in others)
    return sorted(first) if alike and len(first) > 1 else []


def _parts(root: Path) -> tuple[list[Path], list[Path]]:
    """Folders of training images and of test images; the first of each is used."""
    there = names_in(root, folders=True)

    def named(usual: Sequence[str]) -> list[Path]:
        found = (match_name(there, [name]) for name in usual)
        return [root / name for name in found if name is not None]

    return named(TRAIN_FOLDERS), named(TEST_FOLDERS)


def split_tree(tree: ImageFiles, seed: int) -> tuple[ImageFiles, ImageFiles]:
    """Training and test images of one tree: a fifth of each class is tested on, at least one.

    A class of one image keeps it for training. The draw depends on the paths and the seed, so
    images that are added later change the part of few others.
    """
    order: dict[int, list[tuple[bytes, int]]] = {}
    for row, (path, label) in enumerate(zip(tree.paths, tree.labels.tolist(), strict=True)):
        draw = hashlib.sha256(f"{seed} {path}".encode()).digest()
        order.setdefault(label, []).append((draw, row))
    tested = torch.zeros(len(tree), dtype=torch.bool)
    for rows in order.values():
        count = max(1, int(TEST_SHARE * len(rows) + 0.5)) if len(rows) > 1 else 0
        tested[[row for _, row in sorted(rows)[:count]]] = True
    return tree.subset((~tested).nonzero().flatten()), tree.subset(tested.nonzero().flatten())


def _part_folders(root: Path) -> tuple[Path, Path]:
    """Folders of training and of test images."""
    if root.is_file():
        raise FileNotFoundError(
            f"{root} is a file, but a folder is expected here. Name a list of training images with "
            f"--data.train-list {root}, one of test images with --data.test-list, and with --data "
            "the folder that their paths start from, if that is not the folder of each list"
        )
    if not root.is_dir():
        raise FileNotFoundError(f"{root} is not a folder. {_expected(root)}")
    trains, tests = _parts(root)
    lacking = ["training images"] * (not trains) + ["test images"] * (not tests)
    if lacking:
        raise FileNotFoundError(
            f"{root} has no folder of {' and none of '.join(lacking)}. {_expected(root)}"
        )
    return trains[0], tests[0]


def _expected(root: Path) -> str:
    return (
        f"Expected: {root}/train/<class>/<image> and {root}/test/<class>/<image>, or val instead "
        f"of test; or {root}/<class>/<image> with two classes or more, which is then split into "
        "training and test images. To split them yourself, name two lists with --data.train-list "
        "and --data.test-list"
    )


def _listed(
    file: Path, root: str | Path | None, classes: Sequence[str] | None = None
) -> ImageFiles:
    file = file.expanduser()
    if not file.is_file():
        raise FileNotFoundError(f"there is no list {file}: name another one")
    place = file.parent if root is None else Path(root)
    return ImageFiles.from_list(file, place, classes, allow_empty=classes is not None)


def _with_classes(files: ImageFiles, classes: tuple[str, ...]) -> ImageFiles:
    """The same files with labels in other classes, which must include all that occur."""
    unknown = sorted({*files.classes} - {*classes})
    if unknown:
        raise ValueError(
            f"{files.root} has folders that are no classes of the training images "
            f"({len(unknown)}): {shorten(unknown)}. Rename them like the folders of training "
            "images, or remove them"
        )
    return files.with_classes(classes)


def _require_known(known: Annotated, file: Path, files: ImageFiles) -> None:
    """Refuse a training list with other numbers of images."""
    counts = files.counts
    found = (len(files), int(counts.max()), int(counts.min()))
    if found != (known.images, known.most, known.fewest):
        raise ValueError(
            f"{file} is not the training list of {known.title}: it names {found[0]:,} images, "
            f"{found[1]} of the largest class and {found[2]} of the smallest, instead of "
            f"{known.images:,}, {known.most} and {known.fewest}. Use the published list; for your "
            "own list use the recipe my_folder"
        )


def _require_one_of(
    totals: tuple[int, ...], known: Annotated, file: Path, files: ImageFiles
) -> None:
    """Refuse a list of another length."""
    if len(files) not in totals:
        wanted = " or ".join(f"{total:,}" for total in dict.fromkeys(totals))
        raise ValueError(
            f"{file} is not a list of {known.title} for this: it names {len(files):,} images "
            f"instead of {wanted}. Use the published list, or the recipe my_folder"
        )


def require_published(published: Path, file: Path, files: ImageFiles) -> None:
    """Refuse a training list whose classes have other sizes than published.

    `published` is a .json list of K numbers in label order; it need not exist.
    """
    if not published.is_file():
        return
    try:
        counts = json.loads(published.read_bytes())
    except ValueError as error:
        raise ValueError(
            f"{published} is no complete .json file ({error}). Download it again, or remove it"
        ) from error
    if not isinstance(counts, list) or len(counts) != len(files.classes):
        raise ValueError(
            f"{published} is no list of {len(files.classes)} numbers, one for each class: replace "
            "it with the published file, or remove it"
        )
    pairs = enumerate(zip(files.counts.tolist(), counts, strict=True))
    other = [f"class {c} has {n} instead of {wanted}" for c, (n, wanted) in pairs if n != wanted]
    if other:
        raise ValueError(
            f"{file} and {published} disagree on the training images of {len(other)} of "
            f"{len(counts)} classes: {shorten(other)}. Use the published list, or remove the "
            "other file"
        )
