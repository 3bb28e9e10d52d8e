"""Where published images lie: CIFAR, lists of files, ImageNet, VOC and COCO; needs no torch."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from batchformer.lab.data.files.file_lists import one_per_line
from batchformer.lab.data.files.location import folder_named, looked_in, names_in, not_found

# CIFAR-10 and CIFAR-100.

HOST = "www.cs.toronto.edu"
#: Seconds within which the host has to answer.
_ANSWER_S = 1.5


@dataclass(frozen=True)
class CifarLayout:
    """The official release of one data set; `reader` is its class in torchvision.datasets."""

    reader: str
    archive: str
    folder: str
    files: tuple[str, ...]
    num_classes: int


CIFAR_SETS: dict[str, CifarLayout] = {
    "cifar10": CifarLayout(
        "CIFAR10",
        "cifar-10-python.tar.gz",
        "cifar-10-batches-py",
        (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch", "batches.meta"),
        10,
    ),
    "cifar100": CifarLayout(
        "CIFAR100", "cifar-100-python.tar.gz", "cifar-100-python", ("train", "test", "meta"), 100
    ),
}


def find_cifar(name: str, root: str | Path | None = None) -> Path | None:
    """The `.npz` file or official folder that `cifar_lt` would read, or None if there is none.

    Looks at file names only: nothing is opened, and torchvision is not imported.
    """
    layout, root = CIFAR_SETS[name], looked_in(root)
    if root.suffix == ".npz":
        return root if root.is_file() else None
    for folder in (root / layout.folder, root):
        named_right = folder.name == layout.folder
        if named_right and all((folder / file).is_file() for file in layout.files):
            return folder
    npz = root / f"{name}_lt.npz"
    return npz if npz.is_file() else None


def ensure_cifar(name: str, root: str | Path | None = None) -> None:
    """Raise a FileNotFoundError that says what to do unless CIFAR is here or its host answers."""
    if find_cifar(name, root) is not None:
        return
    place = looked_in(root)
    if place.suffix == ".npz":
        raise cifar_not_found(name, place, "the file does not exist")
    try:
        socket.create_connection((HOST, 443), timeout=_ANSWER_S).close()
    except OSError as error:
        reason = f"the download server {HOST} does not answer ({error})"
        raise cifar_not_found(name, place, reason) from error


def cifar_not_found(name: str, root: Path, reason: str) -> FileNotFoundError:
    """The error for CIFAR data that is not there."""
    layout = CIFAR_SETS[name]
    return not_found(
        f"{layout.reader} not found: looked in {root}, and {reason}",
        f"the folder {layout.folder}/ with {', '.join(layout.files)}, or the file {name}_lt.npz",
        f"unpack {layout.archive} from https://{HOST}/~kriz/cifar.html there",
        "folder or .npz file",
    )


# Long-tailed sets that come as lists of image files.

Part = Literal["test", "val"]


@dataclass(frozen=True)
class Annotated:
    """One data set: its lists, and how many images they name."""

    title: str
    train: str  # file name of the list of training images
    test: str  # file name of the list of images that scores are measured on
    val: str  # file name of a third list, for choosing settings
    # File name of a .json list of how many training images every class has; some publish it. If it
    # lies beside the training list or in the folder of the data, the list must agree with it.
    frequencies: str
    classes: int
    images: int  # in the training list
    most: int  # images of its largest class
    fewest: int  # images of its smallest class
    tested: int  # images in the test list
    validated: int  # images in the third list
    source: str
    # Training and test lists as published in .json; used if the others do not exist.
    published: tuple[str, str] | None = None


ANNOTATED: dict[str, Annotated] = {
    "imagenet_lt": Annotated(
        "ImageNet-LT",
        "ImageNet_LT_train.txt",
        "ImageNet_LT_test.txt",
        "ImageNet_LT_val.txt",
        "ImageNet_LT_cls_freq.json",
        classes=1000,
        images=115_846,
        most=1280,
        fewest=5,
        tested=50_000,
        validated=20_000,
        source="train/<wnid>/ and val/<wnid>/ of ImageNet 2012 from https://image-net.org, and the "
        "lists of Liu et al. (2019), Large-Scale Long-Tailed Recognition in an Open World",
    ),
    "inaturalist18": Annotated(
        "iNaturalist 2018",
        "iNaturalist18_train.txt",
        "iNaturalist18_val.txt",
        "iNaturalist18_val.txt",
        "iNaturalist18_cls_freq.json",
        classes=8142,
        images=437_513,
        most=1000,
        fewest=2,
        tested=24_426,
        validated=24_426,
        source="train_val2018/, train2018.json and val2018.json from "
        "https://github.com/visipedia/inat_comp; the .json files serve as lists as they are",
        published=("train2018.json", "val2018.json"),
    ),
    "places_lt": Annotated(
        "Places-LT",
        "Places_LT_train.txt",
        "Places_LT_test.txt",
        "Places_LT_val.txt",
        "Places_LT_cls_freq.json",
        classes=365,
        images=62_500,
        most=4980,
        fewest=5,
        tested=36_500,
        validated=7_300,
        source="train/<scene>/ and val/<scene>/ of Places365-Standard from "
        "http://places2.csail.mit.edu, and the lists of Liu et al. (2019), Large-Scale "
        "Long-Tailed Recognition in an Open World",
    ),
}


@dataclass(frozen=True)
class Lists:
    """The files of a data set: three lists, and the folder that their paths start from."""

    root: Path
    train: Path
    test: Path
    val: Path


def lists_of(
    name: str,
    root: str | Path | None = None,
    train: str | None = None,
    test: str | None = None,
    part: Part = "test",
) -> Lists:
    """Where the lists and the images of a data set are looked for.

    The folder is ``root/NAME`` if that exists, else `root`; the lists lie in it unless named.
    `part` says which of its lists scores are measured on.
    """
    known = ANNOTATED[name]
    place = looked_in(root)
    folder = place / name if (place / name).is_dir() else place
    own = folder / (known.test if part == "test" else known.val)
    first = folder / known.train
    if known.published is not None:
        published = tuple(folder / file for file in known.published)
        first, own = (
            other if other.is_file() and not usual.is_file() else usual
            for usual, other in zip((first, own), published, strict=True)
        )
    return Lists(
        folder,
        first if train is None else Path(train).expanduser(),
        own if test is None else Path(test).expanduser(),
        folder / known.val,
    )


def ensure_lists(name: str, lists: Lists) -> None:
    """Raise a FileNotFoundError that says what to do unless the training and test lists exist."""
    missing = [str(file) for file in (lists.train, lists.test) if not file.is_file()]
    if missing:
        known = ANNOTATED[name]
        raise not_found(
            f"{known.title} not found: there is no {' and no '.join(missing)}",
            f"the images, and the lists {known.train} and {known.test}, one `path label` per line, "
            "paths relative to that folder",
            f"{known.source}; other lists are named with --data.train-list and --data.test-list",
            usual=name,
            where=f"in {lists.root}",
        )


# ImageNet.


def imagenet_folder(root: str | None) -> Path:
    """The folder of ``train`` and ``val``."""
    return folder_named(root, ["imagenet"])


def ensure_imagenet(root: str | None) -> None:
    """Raise a FileNotFoundError that says what to do unless ``train`` and ``val`` have classes."""
    folder = imagenet_folder(root)
    missing = [part for part in ("train", "val") if not names_in(folder / part, folders=True)]
    if missing:
        raise not_found(
            f"ImageNet not found: looked in {folder}, and {' and '.join(missing)} is missing or "
            "has no class folder",
            "train/<class>/<image> and val/<class>/<image>, with the same 1,000 class "
            "folders in both, such as n01440764",
            "register at https://image-net.org/download.php, unpack ILSVRC2012 there and sort the "
            "validation images into class folders",
            usual="imagenet",
        )


# Images with boxes: Pascal VOC, and COCO with all annotations of a list in one file.


def voc_folder(root: str | None) -> Path:
    """The folder of ``VOC2007`` and others."""
    return folder_named(root, ["VOCdevkit"])


def voc_list(root: str | None, name: str) -> Path:
    """The file of a list of images such as ``2007/trainval``.

    >>> str(voc_list("/data/VOCdevkit", "2007/trainval"))
    '/data/VOCdevkit/VOC2007/ImageSets/Main/trainval.txt'
    """
    year, part = name.split("/")
    return voc_folder(root) / f"VOC{year}" / "ImageSets" / "Main" / f"{part}.txt"


def coco_folder(root: str | None) -> Path:
    """The folder of ``annotations``."""
    return folder_named(root, ["coco"])


def coco_list(root: str | None, name: str) -> Path:
    """The annotations of a list of images such as ``train2017``.

    >>> str(coco_list("/data/coco", "train2017"))
    '/data/coco/annotations/instances_train2017.json'
    """
    return coco_folder(root) / "annotations" / f"instances_{name}.json"


def ensure_voc(root: str | None, lists: Sequence[str]) -> None:
    """Raise a FileNotFoundError that says what to do unless these lists of images exist."""
    _ensure_files(
        [voc_list(root, name) for name in lists],
        "Lists of images",
        voc_folder(root),
        "VOCdevkit",
        "VOC<year>/JPEGImages/<image>.jpg, VOC<year>/Annotations/<image>.xml and "
        "VOC<year>/ImageSets/Main/<list>.txt",
        "http://host.robots.ox.ac.uk/pascal/VOC",
    )


def ensure_coco(root: str | None, lists: Sequence[str]) -> None:
    """Raise a FileNotFoundError that says what to do unless these annotations exist."""
    _ensure_files(
        [coco_list(root, name) for name in lists],
        "Annotations",
        coco_folder(root),
        "coco",
        "annotations/instances_<list>.json and <list>/<image>.jpg",
        "https://cocodataset.org",
    )


def _ensure_files(
    files: Sequence[Path], what: str, folder: Path, usual: str, expected: str, source: str
) -> None:
    missing = [file for file in files if not file.is_file()]
    if missing:
        raise not_found(
            f"{what} not found:\n{one_per_line(missing)}",
            expected,
            f"unpack the archives of {source} there; your own lists are named with "
            "--data.trained-on and --data.scored-on",
            usual=usual,
            where=f"in {folder}",
        )
