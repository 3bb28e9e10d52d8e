"""Lists and tables are read line by line, and what is wrong is named by its line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchformer.lab.data.files.file_lists import (
    Entry,
    labels_of,
    read_annotations,
    read_list,
    read_table,
)


def test_odd_lines(tmp_path: Path) -> None:
    file = tmp_path / "list.txt"
    file.write_bytes(
        b"\xef\xbb\xbfval/n01/a.JPEG 0\r\n"
        b"\r\n"
        b"my photos/b c  d.jpg 12\r\n"
        b"   \n"
        b"tab/e.jpg\t3\n"
        b"caf\xc3\xa9/f 7.jpg   1  "
    )
    assert [*read_list(file)] == [
        ("val/n01/a.JPEG", "0", 1),
        ("my photos/b c  d.jpg", "12", 3),
        ("tab/e.jpg", "3", 5),
        ("café/f 7.jpg", "1", 6),
    ]


NAMES = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Zl", "Zp")), min_size=1)


@settings(max_examples=40)
@given(st.lists(st.tuples(NAMES, st.integers(0, 9999)), max_size=8))
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, int]]
) -> None:
    rows = [(f"{name.strip()}.jpg", label) for name, label in rows]
    file = tmp_path_factory.getbasetemp() / "written.txt"
    file.write_text("".join(f"{name} {label}\n" for name, label in rows), encoding="utf-8")
    entries = [*read_list(file)]
    labels, classes = labels_of(file, entries, None)
    assert [entry.path for entry in entries] == [name.strip() for name, _ in rows]
    assert labels == [label for _, label in rows]
    assert len(classes) == max((label for _, label in rows), default=-1) + 1


@pytest.mark.parametrize("line", ["a.jpg", "a.jpg nan", "a.jpg -1", "a.jpg 1.0", "a.jpg ²", "7"])
def test_a_line_that_is_not_understood(tmp_path: Path, line: str) -> None:
    file = tmp_path / "list.txt"
    file.write_text(f"a.jpg 0\n\n{line}\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"list.txt, line 3: expected a path, a space and a label"):
        list(read_list(file))


def test_a_table(tmp_path: Path) -> None:
    file = tmp_path / "table.csv"
    file.write_text('id, path ,label\r\n1,"a, b.jpg",cat\r\n2,c d.jpg,ant,\r\n', newline="")
    assert [*read_table(file)] == [("a, b.jpg", "cat", 2), ("c d.jpg", "ant", 3)]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (
            b"path,kind\na.jpg,0\n",
            r"no column label; .* are: path, kind\. Begin .* line path,label",
        ),
        (b"path,label\na.jpg,0\nb.jpg\n", "line 3, column label: it is empty; fill it in"),
        (b"path,label\na, b.jpg,cat\n", "line 2: more values than columns; put quotes around"),
        (b"", "no column path, no label; its columns are: none"),
        (b"path,label\n\xe4.jpg,0\n", "is no list of images in UTF-8"),
    ],
)
def test_tables_that_are_not_understood(tmp_path: Path, content: bytes, words: str) -> None:
    file = tmp_path / "table.csv"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=rf"table\.csv.*{words}"):
        list(read_table(file))


def test_a_list_that_is_no_text_is_named(tmp_path: Path) -> None:
    file = tmp_path / "list.txt"
    file.write_bytes(b"\xff\xfe\0\0")
    with pytest.raises(ValueError, match=r"list\.txt is no list of images in UTF-8"):
        list(read_list(file))


def labels(values: Sequence[str], classes: Sequence[str] | None = None) -> tuple[Any, Any]:
    entries = [Entry("x", value, line) for line, value in enumerate(values, start=2)]
    return labels_of(Path("it.txt"), entries, classes)


def test_names_or_numbers() -> None:
    assert labels(["10", "9"])[0] == [10, 9], "not sorted as words"
    assert labels(["01", "0"]) == labels(["01", "0"], ["0", "1"]) == ([1, 0], ("0", "1"))
    assert labels(["7", "5"], ["5", "6", "7"]) == ([2, 0], ("5", "6", "7"))
    assert labels(["b", "03"]) == labels(["b", "03"], ["03", "b"]) == ([1, 0], ("03", "b"))
    many = [f"c{number}" for number in range(30)]
    for values, classes, words in (
        (("1", "2"), ["0", "1"], "it.txt, line 3: '2' is none of the 2 classes: 0, 1"),
        (("1", "0"), ["b", "a"], "it.txt, line 2: '1' is none of the 2 classes: b, a"),
        (("cat", "dog"), ["cat", "ant"], "it.txt, line 3: 'dog' is none of the 2 classes"),
        (("dog",), many, "c9 and 20 more"),
        (("crane",), ["crane", "bird", "crane"], "same name cannot be told apart: crane"),
        (("1000000",), None, "line 2: the label 1000000 is no class"),
    ):
        with pytest.raises(ValueError, match=words):
            labels(values, classes)


def test_annotations_in_the_manner_of_coco(tmp_path: Path) -> None:
    images = [{"id": 7, "file_name": "a/1.jpg"}, {"id": 5, "file_name": "b 2.jpg"}]
    annotations = [{"image_id": 5, "category_id": 1}, {"image_id": 7, "category_id": 0}]
    file = tmp_path / "train.json"
    file.write_text(json.dumps({"images": images, "annotations": annotations}))
    assert [*read_annotations(file)] == [("b 2.jpg", "1", 1), ("a/1.jpg", "0", 2)]
    for content, words in (
        (
            {"images": images},
            "it has no 'annotations'. Expected: images with id, file_name, and an",
        ),
        ({"images": images[:1], "annotations": annotations}, "annotation 1: .* got 5 and 1"),
        ([], "Expected: images with id"),
        ({"images": images * 2, "annotations": []}, "several images have the same id: 7, 5"),
        ({"images": images, "annotations": [{"image_id": 5, "category_id": -1}]}, "annotation 1:"),
    ):
        file.write_text(json.dumps(content))
        with pytest.raises(ValueError, match=words):
            list(read_annotations(file))
    for cut in (b'{"images": [', b'{"images": "\xe4"}'):
        file.write_bytes(cut)
        with pytest.raises(ValueError, match=r"train\.json holds no annotations"):
            list(read_annotations(file))
