"""Lists and tables that name image files and their labels."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

_NAMED = 10

#: A number beyond it is a mistake: every class has a name in memory.
MOST_CLASSES = 1_000_000


@dataclass
class Entries:
    """What a list says: for each of N images its path, its label as written, and its line.

    Args:
        source: the file that was read.
    """

    source: str
    paths: list[str] = field(default_factory=list)
    values: list[str] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)

    def add(self, path: str, value: str, line: int) -> None:
        """One more image."""
        self.paths.append(path)
        self.values.append(value)
        self.lines.append(line)


def read_list(file: Path) -> Entries:
    """One image a line: its path, white space, its label as a number.

    Paths may have spaces in them; blank lines are passed over.
    """
    entries = Entries(str(file))
    with _text(file), file.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            path, *label = line.strip().rsplit(maxsplit=1)
            if not label or not _is_number(label[0]):
                raise ValueError(
                    f"{file}, line {number}: expected a path, a space and a label 0, 1, 2, ..., "
                    f"got {line.strip()!r}"
                )
            entries.add(path, label[0], number)
    return entries


def read_annotations(file: Path) -> Entries:
    """A .json in the manner of COCO, as iNaturalist 2018 has: its images and their categories.

    Labels are the category numbers as they are; the line of an entry is its place among the
    annotations, from 1.
    """
    entries = Entries(str(file))
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        paths = {image["id"]: image["file_name"] for image in content["images"]}
        for number, annotation in enumerate(content["annotations"], start=1):
            label = str(annotation["category_id"])
            if not _is_number(label):
                raise ValueError(
                    f"{file}, annotation {number}: expected a category_id 0, 1, 2, ..., got {label}"
                )
            entries.add(paths[annotation["image_id"]], label, number)
    except json.JSONDecodeError as error:
        raise ValueError(f"{file} is no complete .json file: {error}") from error
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"{file}: expected images with id and file_name, and annotations with image_id and "
            f"category_id; missed {error}"
        ) from error
    return entries


def read_table(file: Path, path_column: str, label_column: str) -> Entries:
    """One image a row of a comma-separated table with a header."""
    entries = Entries(str(file))
    with _text(file), file.open(encoding="utf-8-sig", newline="") as stream:
        rows = csv.DictReader(stream)
        for column in (path_column, label_column):
            if column not in (rows.fieldnames or ()):
                raise ValueError(
                    f"{file} has no column {column!r}; its columns are: "
                    f"{', '.join(rows.fieldnames or ()) or 'none'}. Let the file begin with the "
                    f"line {path_column},{label_column} and separate columns by commas"
                )
        for row in rows:
            path, value = ((row[column] or "").strip() for column in (path_column, label_column))
            if not path or not value:
                raise ValueError(
                    f"{file}, line {rows.line_num}: {path_column} or {label_column} is empty"
                )
            entries.add(path, value, rows.line_num)
    return entries


@contextmanager
def _text(file: Path) -> Iterator[None]:
    """Name a file that turns out to be no text."""
    try:
        yield
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{file} is no list of images in UTF-8: {error}") from error


def by_number(entries: Entries, classes: Sequence[str] | None) -> tuple[list[int], tuple[str, ...]]:
    """Labels that are written as numbers, and the K names of their classes.

    Args:
        entries: what the list says.
        classes: names in label order. None: all numbers up to the largest.

    >>> by_number(Entries("list.txt", ["1.jpg", "2.jpg"], ["2", "0"], [1, 2]), None)
    ([2, 0], ('0', '1', '2'))
    """
    labels = [int(value) for value in entries.values]
    for label, line in zip(labels, entries.lines, strict=True):
        if classes is None and label >= MOST_CLASSES:
            raise ValueError(
                f"{entries.source}, line {line}: the label {label} is no class: labels count "
                f"classes from 0, and up to {MOST_CLASSES:,} are possible"
            )
        if classes is not None and label >= len(classes):
            raise ValueError(
                f"{entries.source}, line {line}: the label {label} is outside the {len(classes)} "
                f"classes 0..{len(classes) - 1}"
            )
    if classes is None:
        return labels, tuple(str(label) for label in range(max(labels, default=-1) + 1))
    return labels, tuple(classes)


def by_name_or_number(
    entries: Entries, classes: Sequence[str] | None
) -> tuple[list[int], tuple[str, ...]]:
    """Labels as numbers, and the K names of their classes.

    Values that are all names in `classes`, or not all numbers, are class names; otherwise they are
    the labels themselves.

    Args:
        entries: what the list says.
        classes: names in label order. None: the names that occur, sorted, or all numbers up to
            the largest.

    >>> entries = Entries("list.csv", ["1.jpg", "2.jpg"], ["cat", "ant"], [2, 3])
    >>> by_name_or_number(entries, None)
    ([1, 0], ('ant', 'cat'))
    """
    named = classes is not None and set(entries.values) <= set(classes)
    if not named and all(map(_is_number, entries.values)):
        return by_number(entries, classes)
    names = tuple(sorted(set(entries.values)) if classes is None else classes)
    numbers = {name: label for label, name in enumerate(names)}
    if len(numbers) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(
            f"{entries.source}: classes of the same name cannot be told apart: {shorten(twice)}"
        )
    for value, line in zip(entries.values, entries.lines, strict=True):
        if value not in numbers:
            raise ValueError(
                f"{entries.source}, line {line}: {value!r} is none of the {len(names)} classes: "
                f"{shorten(names)}"
            )
    return [numbers[value] for value in entries.values], names


def shorten(names: Sequence[str]) -> str:
    """The first few names, and how many more there are.

    >>> shorten(["ant", "bee"])
    'ant, bee'
    """
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _is_number(word: str) -> bool:
    return word.isascii() and word.isdigit()
