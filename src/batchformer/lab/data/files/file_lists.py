"""Lists and tables that name image files and their labels."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

#: The largest number of names that `one_per_line` lists.
_LINES = 5
#: Keys of a COCO annotation that are read.
_OF_IMAGE = ("image_id", "category_id")

#: A larger label is taken for a mistake: every class has a name in memory.
MOST_CLASSES = 1_000_000


class Entry(NamedTuple):
    """What a list says of an image."""

    path: str
    value: str  # its label as written
    line: int


def read_list(file: Path) -> Iterator[Entry]:
    """Read one image per line: its path, white space, its label as a number.

    Paths may contain spaces; blank lines are skipped.
    """
    for number, line in lines_of(file):
        path, *label = line.rsplit(maxsplit=1)
        if not label or not _is_number(label[0]):
            raise ValueError(
                f"{file}, line {number}: expected a path, a space and a label 0, 1, 2, ..., "
                f"got {line!r}. For names of classes, write a .csv with the columns path and label"
            )
        yield Entry(path, label[0], number)


def lines_of(file: Path) -> Iterator[tuple[int, str]]:
    """The lines of a list that are not blank, each with its number from 1."""
    with _text(file), file.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield number, line.strip()


def read_annotations(file: Path) -> Iterator[Entry]:
    """Read images and their categories from a .json in COCO's format, such as iNaturalist 2018's.

    Labels are the category numbers as they are; the line of an entry is its position among the
    annotations, from 1.
    """
    content = read_coco(file, {"images": ("id", "file_name"), "annotations": _OF_IMAGE})
    paths = {image["id"]: image["file_name"] for image in content["images"]}
    for number, annotation in enumerate(content["annotations"], start=1):
        image, label = (annotation[key] for key in _OF_IMAGE)
        if image not in paths or not _is_number(str(label)):
            raise ValueError(
                f"{file}, annotation {number}: expected the id of an image and a category_id "
                f"0, 1, 2, ..., got {image} and {label}"
            )
        yield Entry(paths[image], str(label), number)


def read_coco(file: Path, keys: Mapping[str, Sequence[str]]) -> dict[str, list[dict[str, Any]]]:
    """Read parts of a .json in COCO's format; `keys` names what each entry of a part must have."""
    try:
        content = json.loads(file.read_bytes())
        for part, wanted in keys.items():
            for entry in content[part]:
                missing = [key for key in wanted if key not in entry]
                if missing:
                    raise ValueError(f"an entry of {part!r} has no {missing[0]!r}")
        times = Counter(image["id"] for image in content["images"])
        if twice := [str(number) for number, count in times.items() if count > 1]:
            raise ValueError(f"several images have the same id: {shorten(twice)}")
    except (ValueError, KeyError, TypeError) as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else error
        expected = ", and ".join(f"{part} with {', '.join(own)}" for part, own in keys.items())
        raise ValueError(
            f"{file} holds no annotations in the format of COCO: {reason}. Expected: {expected}. "
            "Download or write it again, or name another list."
        ) from error
    return {part: content[part] for part in keys}


def read_table(file: Path) -> Iterator[Entry]:
    """Read one image per row of a comma-separated table with the columns path and label."""
    for line, (path, value) in table_rows(file, ("path", "label")):
        yield Entry(path, value, line)


def table_rows(file: Path, columns: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
    """The line of each row of a comma-separated table, and its values in these columns.

    Further columns are ignored. No value may be empty.
    """
    with _text(file), file.open(encoding="utf-8-sig", newline="") as stream:
        rows = csv.DictReader(stream)
        there = [column.strip() for column in rows.fieldnames or ()]
        rows.fieldnames = there
        absent = [column for column in columns if column not in there]
        if absent:
            raise ValueError(
                f"{file} has no column {', no '.join(absent)}; its columns are: "
                f"{', '.join(there) or 'none'}. Begin the file with the line {','.join(columns)} "
                "and separate columns by commas"
            )
        for row in rows:
            where = f"{file}, line {rows.line_num}"
            # Values beyond the header are collected under None; a comma at the end is harmless.
            if any(row.get(None) or ()):
                raise ValueError(
                    f"{where}: more values than columns; put quotes around a value that has a "
                    "comma in it"
                )
            # A row that is too short has None in its last columns.
            values = [(row[column] or "").strip() for column in columns]
            if "" in values:
                empty = columns[values.index("")]
                raise ValueError(
                    f"{where}, column {empty}: it is empty; fill it in, or remove the line"
                )
            yield rows.line_num, values


@contextmanager
def _text(file: Path) -> Iterator[None]:
    """Turn errors about text into one that names the file."""
    try:
        yield
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(
            f"{file} is no list of images in UTF-8 ({error}). Save it as text in UTF-8"
        ) from error


def labels_of(
    source: Path, entries: Sequence[Entry], classes: Sequence[str] | None
) -> tuple[list[int], tuple[str, ...]]:
    """Labels of the entries of a list, and the K names of their classes.

    Without `classes`, these are all numbers up to the largest if all values are numbers, otherwise
    the names that occur, sorted.

    >>> labels_of(Path("list.csv"), [Entry("1.jpg", "cat", 2), Entry("2.jpg", "ant", 3)], None)
    ([1, 0], ('ant', 'cat'))
    >>> labels_of(Path("list.txt"), [Entry("1.jpg", "2", 1), Entry("2.jpg", "0", 2)], None)
    ([2, 0], ('0', '1', '2'))
    """
    names = _classes_of(source, entries) if classes is None else tuple(classes)
    numbers = {name: label for label, name in enumerate(names)}
    if len(numbers) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(
            f"{source}: classes of the same name cannot be told apart: {shorten(twice)}"
        )
    labels = []
    for _, value, line in entries:
        name = value if value in numbers or not _is_number(value) else str(int(value))
        if name not in numbers:
            raise ValueError(
                f"{source}, line {line}: {value!r} is none of the {len(names)} classes: "
                f"{shorten(names)}"
            )
        labels.append(numbers[name])
    return labels, names


def _classes_of(source: Path, entries: Sequence[Entry]) -> tuple[str, ...]:
    values = {value for _, value, _ in entries}
    if not all(map(_is_number, values)):
        return tuple(sorted(values))
    largest = max(map(int, values), default=-1)
    if largest >= MOST_CLASSES:
        line = next(line for _, value, line in entries if int(value) == largest)
        raise ValueError(
            f"{source}, line {line}: the label {largest} is no class: labels count classes from 0, "
            f"and at most {MOST_CLASSES:,} classes are possible"
        )
    return tuple(map(str, range(largest + 1)))


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
