"""Lists and tables that name image files and their labels."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

#: Names that `one_per_line` gives.
_LINES = 5

#: A larger label is taken for a mistake: every class has a name in memory.
MOST_CLASSES = 1_000_000


@dataclass
class Entries:
    """The content of a list: for each of N images its path, its label as written, and its line."""

    source: str
    paths: list[str] = field(default_factory=list)
    values: list[str] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)

    def add(self, path: str, value: str, line: int) -> None:
        self.paths.append(path)
        self.values.append(value)
        self.lines.append(line)


def read_list(file: Path) -> Entries:
    """Read one image per line: its path, white space, its label as a number.

    Paths may contain spaces; blank lines are skipped.
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
    """Read a .json in COCO's format, as iNaturalist 2018 has: images and their categories.

    Labels are the category numbers as they are; the line of an entry is its position among the
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
        raise ValueError(
            f"{file} is no complete .json file ({error}). Download or write it again"
        ) from error
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"{file}: expected images with id and file_name, and annotations with image_id and "
            f"category_id; missing: {error}"
        ) from error
    return entries


def read_table(file: Path) -> Entries:
    """Read one image per row of a comma-separated table with the columns path and label."""
    entries = Entries(str(file))
    with _text(file), file.open(encoding="utf-8-sig", newline="") as stream:
        rows = csv.DictReader(stream)
        for column in ("path", "label"):
            if column not in (rows.fieldnames or ()):
                raise ValueError(
                    f"{file} has no column {column!r}; its columns are: "
                    f"{', '.join(rows.fieldnames or ()) or 'none'}. Begin the file with the line "
                    "path,label and separate columns by commas"
                )
        for row in rows:
            path, value = ((row[column] or "").strip() for column in ("path", "label"))
            if not path or not value:
                raise ValueError(
                    f"{file}, line {rows.line_num}: path or label is empty; fill it in, or remove "
                    "the line"
                )
            entries.add(path, value, rows.line_num)
    return entries


@contextmanager
def _text(file: Path) -> Iterator[None]:
    """Turn errors about text into one that names the file."""
    try:
        yield
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(
            f"{file} is no list of images in UTF-8 ({error}). Save it as text in UTF-8"
        ) from error


def by_number(entries: Entries, classes: Sequence[str] | None) -> tuple[list[int], tuple[str, ...]]:
    """Labels of entries whose values are numbers, and the K names of their classes.

    Without `classes`, names in label order, they are all numbers up to the largest.

    >>> by_number(Entries("list.txt", ["1.jpg", "2.jpg"], ["2", "0"], [1, 2]), None)
    ([2, 0], ('0', '1', '2'))
    """
    labels = [int(value) for value in entries.values]
    for label, line in zip(labels, entries.lines, strict=True):
        if classes is None and label >= MOST_CLASSES:
            raise ValueError(
                f"{entries.source}, line {line}: the label {label} is no class: labels count "
                f"classes from 0, and at most {MOST_CLASSES:,} classes are possible"
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
    """Labels of entries whose values are names or numbers, and the K names of their classes.

    If all values are names in `classes`, or not all are numbers, they are class names; otherwise
    they are the labels themselves. Without `classes` they are the names that occur, sorted, or all
    numbers up to the largest.

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


def shorten(names: Sequence[str], most: int = 10) -> str:
    """The first few names, and how many more there are.

    >>> shorten(["ant", "bee"]), shorten(["ant", "bee", "cat"], most=2)
    ('ant, bee', 'ant, bee and 1 more')
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def one_per_line(names: Sequence[object]) -> str:
    """The first few names, each on an indented line, and how many more there are."""
    more = f"\n  and {len(names) - _LINES} more" if len(names) > _LINES else ""
    return "\n".join(f"  {name}" for name in names[:_LINES]) + more


def _is_number(word: str) -> bool:
    return word.isascii() and word.isdigit()
