"""Images with boxes in the folders of Pascal VOC."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import torch
from torch import Tensor

from batchformer.lab.data.files.file_lists import lines_of, one_per_line
from batchformer.lab.data.sets.image_layouts import ensure_voc, voc_list

#: The classes of Pascal VOC, in their official order.
VOC_CLASSES = (
    *("aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow"),
    *("diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa"),
    *("train", "tvmonitor"),
)
#: Endings of image files; of two files with the same name, the one with the earlier ending counts.
ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff")


@dataclass(frozen=True)
class AnnotatedObject:
    """An object of an annotation."""

    name: str
    box: tuple[float, float, float, float]  # left, top, right, bottom; pixels from 0
    difficult: bool  # marked as hard to recognise

    @property
    def degenerate(self) -> bool:
        """Whether a side is at most one pixel, which is a point or a line in VOC, or is NaN."""
        left, top, right, bottom = self.box
        return not (right - left > 1 and bottom - top > 1)


@dataclass(frozen=True)
class BoxedImage:
    """An image file and its n objects."""

    path: Path
    boxes: Tensor  # (n, 4) float32, left, top, right, bottom
    labels: Tensor  # (n,) int64 positions among the classes
    difficult: Tensor  # (n,) bool


@dataclass(frozen=True)
class BoxedImages:
    """Images with boxes, to train on and to score."""

    classes: tuple[str, ...]
    train: tuple[BoxedImage, ...]  # images with at least one object each
    test: tuple[BoxedImage, ...]  # every image of the lists, also those without an object
    split_sha256: str
    remarks: tuple[str, ...] = ()  # what the user should know before training

    @property
    def train_counts(self) -> Tensor:
        """(K,) objects of each class that are trained on."""
        return count_objects(self.train, len(self.classes))


def count_objects(images: Sequence[BoxedImage], classes: int) -> Tensor:
    """(K,) objects of each class."""
    labels = torch.cat([image.labels for image in images])
    return torch.bincount(labels, minlength=classes)


def read_annotation(file: Path) -> list[AnnotatedObject]:
    """The objects of one annotation; parts of objects, such as hands, are left out.

    VOC counts pixels from 1 and includes the last one: its 1..10 is 0 to 10 here.
    """
    try:
        root = ElementTree.parse(file).getroot()
        return [_object(element) for element in root.iter("object")]
    except (ElementTree.ParseError, ValueError) as error:
        raise ValueError(
            f"{file} is no annotation in the format of Pascal VOC: {error}. Write it again, or "
            "leave its image out of the list."
        ) from error


def _object(element: ElementTree.Element) -> AnnotatedObject:
    name = (element.findtext("name") or "").strip()
    if not name:
        raise ValueError("an object has no name")
    left, top, right, bottom = (
        _number(element, name, side) for side in ("xmin", "ymin", "xmax", "ymax")
    )
    difficult = (element.findtext("difficult") or "").strip().lower()
    easy = difficult in ("", "0", "false")
    return AnnotatedObject(name, (left - 1, top - 1, right, bottom), not easy)


def _number(element: ElementTree.Element, name: str, side: str) -> float:
    text = element.findtext(f"bndbox/{side}")
    try:
        return float(text or "")
    except ValueError:
        found = "nothing" if text is None else repr(text)
        raise ValueError(f"an object {name!r} has {found} for {side}") from None


def load_voc(
    root: str | None,
    trained_on: Sequence[str],
    scored_on: Sequence[str],
    difficult: bool = True,
) -> BoxedImages:
    """Read the lists, such as ``2007/trainval``, and all annotations; look for every image.

    Classes are the 20 of VOC if no other name is found, else the names found, sorted. Objects that
    are marked as difficult are trained on if `difficult`; test images always keep them.
    """
    ensure_voc(root, (*trained_on, *scored_on))
    files = {name: _files(root, name) for name in dict.fromkeys((*trained_on, *scored_on))}
    named = (path for pairs in files.values() for pair in pairs for path in pair)
    require_files(named, "the lists in ImageSets/Main")
    things = {file: read_annotation(file) for pairs in files.values() for _, file in pairs}
    _warn_of_degenerate(things)
    found = {thing.name for own in things.values() for thing in own}
    classes = VOC_CLASSES if found <= set(VOC_CLASSES) else tuple(sorted(found))

    def kept(annotation: Path, with_difficult: bool) -> list[AnnotatedObject]:
        whole = [thing for thing in things[annotation] if not thing.degenerate]
        return [thing for thing in whole if with_difficult or not thing.difficult]

    def images(lists: Sequence[str], with_difficult: bool) -> list[BoxedImage]:
        pairs = (pair for name in lists for pair in files[name])
        return [_boxed(image, kept(file, with_difficult), classes) for image, file in pairs]

    train, test = images(trained_on, difficult), images(scored_on, with_difficult=True)
    return boxed_images(classes, train, test, trained_on, scored_on, folders=2)


def boxed_images(
    classes: tuple[str, ...],
    train: Sequence[BoxedImage],
    test: Sequence[BoxedImage],
    trained_on: Sequence[str],
    scored_on: Sequence[str],
    folders: int,
) -> BoxedImages:
    """A data set of images with boxes; training images without an object are left out.

    `folders` is how many levels above an image the folder of its list is, whose name is hashed.
    """
    listed, train = len(train), [image for image in train if len(image.labels)]
    if not train:
        raise ValueError(
            f"No image of {', '.join(trained_on)} has an object to train on. Annotate some, or "
            "name other lists by --data.trained-on."
        )
    if all(image.difficult.all() for image in test):
        raise ValueError(
            f"No image of {', '.join(scored_on)} has an object to score. Annotate some, or name "
            "other lists by --data.scored-on."
        )
    left_out = listed - len(train)
    words = f"{left_out} of {listed} training images have no object and are left out"
    hashed = _split_hash(classes, (train, test), folders)
    return BoxedImages(
        classes, tuple(train), tuple(test), hashed, remarks=(words,) if left_out else ()
    )


def _files(root: str | None, name: str) -> list[tuple[Path, Path]]:
    """Image and annotation of every line of a list; a missing image is named as .jpg."""
    file = voc_list(root, name)
    folder = file.parents[2]
    found: dict[str, list[str]] = {}
    try:
        with os.scandir(folder / "JPEGImages") as entries:
            for entry in entries:
                path = Path(entry.name)
                if path.suffix.lower() in ENDINGS:
                    found.setdefault(path.stem, []).append(path.suffix)
    except (FileNotFoundError, NotADirectoryError):
        pass  # then every image is missing, and `require_files` says so

    def image(line: str) -> Path:
        ending = min(found.get(line, ENDINGS[:1]), key=lambda e: ENDINGS.index(e.lower()))
        return folder / "JPEGImages" / f"{line}{ending}"

    return [(image(line), folder / "Annotations" / f"{line}.xml") for _, line in lines_of(file)]


def require_files(paths: Iterable[Path], lists: str) -> None:
    """Refuse missing files; ``lists`` says where the lists are that name them."""
    missing = [path for path in dict.fromkeys(paths) if not path.is_file()]
    if missing:
        raise FileNotFoundError(
            f"{len(missing)} files of images and annotations that the lists name do not exist:\n"
            f"{one_per_line(missing)}\nUnpack the rest of the data set there, or remove what names "
            f"them from {lists}."
        )


def _warn_of_degenerate(things: dict[Path, list[AnnotatedObject]]) -> None:
    bad = [file for file, whole in things.items() for thing in whole if thing.degenerate]
    if bad:
        warnings.warn(
            f"{len(bad)} boxes have no width or no height and are left out, the first in {bad[0]}",
            RuntimeWarning,
            stacklevel=3,
        )


def _boxed(path: Path, things: Sequence[AnnotatedObject], classes: Sequence[str]) -> BoxedImage:
    return BoxedImage(
        path,
        torch.tensor([thing.box for thing in things], dtype=torch.float32).reshape(-1, 4),
        torch.tensor([classes.index(thing.name) for thing in things], dtype=torch.int64),
        torch.tensor([thing.difficult for thing in things], dtype=torch.bool),
    )


def _split_hash(classes: Sequence[str], parts: Sequence[Sequence[BoxedImage]], folders: int) -> str:
    """SHA-256 of the classes, and of the names and objects of all images."""
    total = hashlib.sha256("\n".join(classes).encode())
    for part in parts:
        total.update(b"\n\n")
        for image in part:
            folder, name = image.path.parts[-folders - 1], image.path.stem
            rows = [image.boxes.tolist(), image.labels.tolist(), image.difficult.tolist()]
            total.update(f"{folder}/{name} {rows}\n".encode())
    return total.hexdigest()
