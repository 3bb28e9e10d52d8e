"""Where the published long-tailed sets lie that come as lists of image files; needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from batchformer.lab.data.files.location import looked_in

Part = Literal["test", "val"]


@dataclass(frozen=True)
class Annotated:
    """One data set: its lists, and how many images they name.

    Args:
        title: as papers call it.
        train: file name of the list of training images.
        test: that of the images that scores are measured on.
        val: that of a third list, for choosing settings.
        frequencies: that of a .json list of the training images of every class, which some
            publish with the lists; if it lies beside the training list or in the folder of the
            data, the training list must agree with it.
        classes: K.
        images: images in the training list.
        most: images of its largest class.
        fewest: images of its smallest class.
        tested: images in the test list.
        validated: images in the third list.
        source: where images and lists come from.
        published: file names of the training and test lists as published in .json; used if the
            others do not exist.
    """

    title: str
    train: str
    test: str
    val: str
    frequencies: str
    classes: int
    images: int
    most: int
    fewest: int
    tested: int
    validated: int
    source: str
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
    """The files that a data set is read from.

    Args:
        root: folder that the paths in the lists start from.
        train: list of the training images.
        test: list of the images that scores are measured on.
        val: the third list.
    """

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

    Args:
        name: of the data set.
        root: None: $BATCHFORMER_DATA, else ~/.cache/batchformer.
        train: a list in another place.
        test: a list in another place.
        part: which of its lists scores are measured on.
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


def present(lists: Lists) -> bool:
    """Whether the lists of training and test images exist; images are not looked for."""
    return lists.train.is_file() and lists.test.is_file()


def ensure_present(name: str, lists: Lists) -> None:
    """Check that the lists of training and test images exist.

    Raises:
        FileNotFoundError: says which list is missing and how to provide it.
    """
    missing = [str(file) for file in (lists.train, lists.test) if not file.is_file()]
    if not missing:
        return
    known = ANNOTATED[name]
    raise FileNotFoundError(
        f"{known.title} not found: there is no {' and no '.join(missing)}.\n"
        f"Expected: {lists.root} with the images, and in it the lists {known.train} and "
        f"{known.test}, one `path label` per line, paths relative to that folder.\n"
        f"To provide it: {known.source}. Name another folder with --data.root or the "
        "environment variable BATCHFORMER_DATA (there also in a folder "
        f"{name}), other lists with --data.train-list and --data.test-list"
    )
