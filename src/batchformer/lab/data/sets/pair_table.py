"""A person's own images of attributes and objects, named by a table."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

from batchformer.lab.data.files.file_lists import some
from batchformer.lab.data.sets.compositions import Phase
from batchformer.lab.data.sets.pair_files import PHASES, PairFiles, PairImage

COLUMNS = ("image", "attribute", "object", "split")
# Phases in the words of a remark.
_SPOKEN: dict[Phase, str] = {"val": "validation", "test": "the test"}


def pair_table(table: str | Path, root: str | Path, name: str | None = None) -> PairFiles:
    """Images that a comma-separated table names, by its columns image, attribute, object, split.

    A pair is seen if it occurs in a row of train. Pairs that no model could learn are remarked on,
    not refused.

    Args:
        table: the file, UTF-8, with a header; further columns are passed over.
        root: folder that the paths of the images start from.
        name: what the data is. None: the name of the file.
    """
    file = Path(table).expanduser()
    images = read_pairs(file)
    _refuse_shared(file, images)
    for phase in ("train", "test"):
        if not any(image.split == phase for image in images):
            raise ValueError(f"{file}: no row has the split {phase}")
    return PairFiles.of(name or file.stem, root, images, remarks=remarks_on(images))


def read_pairs(file: Path) -> list[PairImage]:
    """The rows of a table in order; an error names the line and the column."""
    images: list[PairImage] = []
    with file.open(encoding="utf-8-sig", newline="") as stream:
        rows = csv.DictReader(stream)
        there = [column.strip() for column in rows.fieldnames or ()]
        rows.fieldnames = there
        absent = [column for column in COLUMNS if column not in there]
        if absent:
            raise ValueError(
                f"{file}, line 1: there is no column {', no '.join(absent)}; its columns are: "
                f"{', '.join(there) or 'none'}"
            )
        for row in rows:
            images.append(_image(row, f"{file}, line {rows.line_num}"))
    if not images:
        raise ValueError(f"{file} names no images")
    return images


def write_pair_table(file: str | Path, images: Iterable[PairImage]) -> None:
    """A table that `pair_table` reads, in the order given."""
    with Path(file).expanduser().open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(images)


def remarks_on(images: Sequence[PairImage]) -> tuple[str, ...]:
    """What is doubtful about a split, in sentences.

    >>> remarks_on([PairImage("1.jpg", "wet", "cat", "train"), *[
    ...     PairImage(f"{n}.jpg", "wet", "dog", phase) for n, phase in ((2, "val"), (3, "test"))]])
    ('1 object of the test never occurs in training, so that nothing of it is learned: dog',)
    """
    remarks: list[str] = []
    trained = [image for image in images if image.split == "train"]
    for phase, spoken in _SPOKEN.items():
        own = [image for image in images if image.split == phase]
        if not own:
            remarks.append(f"there are no images of {spoken}")
        elif not {image.pair for image in own} - {image.pair for image in trained}:
            remarks.append(f"no pair of {spoken} is unseen: training has images of all of them")
    tested = [image for image in images if image.split == "test"]
    for column, place in (("attribute", 1), ("object", 2)):
        unknown = sorted({i[place] for i in tested} - {i[place] for i in trained})
        if unknown:
            occur = f"{column} of the test never occurs"
            if len(unknown) > 1:
                occur = f"{column}s of the test never occur"
            them = "it" if len(unknown) == 1 else "them"
            remarks.append(
                f"{len(unknown)} {occur} in training, so that nothing of {them} is learned: "
                f"{some(unknown)}"
            )
    return tuple(remarks)


def _image(row: dict[str, str], where: str) -> PairImage:
    # Values beyond the header are collected under None by the reader.
    if None in row:
        raise ValueError(
            f"{where}: more values than columns; put quotes around a value that has a comma in it"
        )
    # A row that is too short has None in its last columns.
    values = [(row[column] or "").strip() for column in COLUMNS]
    for column, value in zip(COLUMNS, values, strict=True):
        if not value:
            raise ValueError(f"{where}, column {column}: it is empty")
    path, attribute, thing, split = values
    if split not in PHASES:
        raise ValueError(
            f"{where}, column split: expected one of {', '.join(PHASES)}, got {split!r}"
        )
    return PairImage(path, attribute, thing, split)


def _refuse_shared(file: Path, images: Sequence[PairImage]) -> None:
    """An image of two parts would be trained on and measured by."""
    parts: dict[str, Phase] = {}
    for image in images:
        first = parts.setdefault(image.image, image.split)
        if first != image.split:
            raise ValueError(
                f"{file}: {image.image} is in {first} and in {image.split}; leave it in one of them"
            )
