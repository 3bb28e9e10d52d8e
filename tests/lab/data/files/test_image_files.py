"""Image files are found as torchvision finds them, or as a list says; missing ones are named."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch
from torchvision.datasets import ImageFolder

from batchformer.lab.data.files import image_files
from batchformer.lab.data.files.image_files import ImageFiles
from helpers.data_files import touch

TREE = ("b/2.JPG", "b/10.png", "b/deep/er/1.jpeg", "a b/x y.webp", "B/z.tif", "é/a.jpg")


def test_a_folder_is_read_as_image_folder_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    touch(tmp_path, *TREE, "b/notes.txt", "list.txt")
    files = ImageFiles.from_folder(tmp_path)
    theirs = ImageFolder(str(tmp_path))
    assert files.classes == tuple(theirs.classes) and files.labels.tolist() == theirs.targets
    assert [str(tmp_path / path) for path in files.paths] == [path for path, _ in theirs.samples]
    assert len(files) == len(TREE) and set(files.paths) == set(TREE)
    assert files.counts.tolist() == [theirs.targets.count(k) for k in range(4)]
    monkeypatch.chdir(tmp_path)
    assert ImageFiles.from_folder(".").paths == files.paths


def test_what_programs_hide_beside_images_is_left_out(tmp_path: Path) -> None:
    """A notebook's copies of images, and what macOS writes on other file systems."""
    touch(tmp_path, ".ipynb_checkpoints/1.jpg", "cat/.ipynb_checkpoints/1-checkpoint.jpg")
    touch(tmp_path, "cat/1.jpg", "cat/._1.jpg", "cat/deep.er/2.jpg", "dog/.. 3.jpg")
    (tmp_path / ".git").mkdir()
    files = ImageFiles.from_folder(tmp_path, allow_empty=True)
    assert files.classes == ("cat", "dog") and files.paths == ("cat/1.jpg", "cat/deep.er/2.jpg")


def test_names_of_other_encodings_are_told_before_training(tmp_path: Path) -> None:
    touch(tmp_path, "a/1.jpg", os.fsdecode(b"b/caf\xe9.jpg"))
    words = r"names of 1 images are not in UTF-8: 'b/caf\\udce9\.jpg'\. Rename .* convmv"
    with pytest.raises(ValueError, match=words):
        ImageFiles.from_folder(tmp_path)


def test_without_torchvision_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torchvision.datasets.folder", None)
    with pytest.raises(ImportError, match=r"pip install 'batchformer\[lab\]'"):
        ImageFiles.from_folder(tmp_path)


def test_folders_without_classes_or_images_are_refused(tmp_path: Path) -> None:
    for files, place, words in (
        ((), "away", r"away is not a folder. Expected: .*<class>"),
        (("1.jpg",), "", "has no folders in it"),
        (("a/1.txt", "b/2.txt"), "", r"no image in any of its folders \(a, b\).*\.jpeg"),
    ):
        touch(tmp_path, *files)
        with pytest.raises(FileNotFoundError, match=words):
            ImageFiles.from_folder(tmp_path / place)
    touch(tmp_path, "a/1.jpg", "c/none.txt", "d/1.jpg")
    words = r"2 of 4 classes have no image: b, c\. Put images into .* \(of .*\.webp\), or take"
    with pytest.raises(ValueError, match=words):
        ImageFiles.from_folder(tmp_path)
    assert ImageFiles.from_folder(tmp_path, allow_empty=True).counts.tolist() == [1, 0, 0, 1]


def test_a_list(tmp_path: Path) -> None:
    touch(tmp_path, "val/a b/1.jpg", "val/c/2.jpg")
    (tmp_path / "list.txt").write_text("val/c/2.jpg 1\nval/a b/1.jpg 0\nval/c/2.jpg 1\n")
    files = ImageFiles.from_list(tmp_path / "list.txt", tmp_path)
    assert files.paths == ("val/c/2.jpg", "val/a b/1.jpg", "val/c/2.jpg"), "in the list's order"
    assert files.labels.tolist() == [1, 0, 1] and files.labels.dtype == torch.int64
    assert files.classes == ("0", "1") and files.root == tmp_path
    known = ImageFiles.from_list(tmp_path / "list.txt", str(tmp_path), ["0", "1"])
    assert known.classes == ("0", "1")
    with pytest.raises(ValueError, match=r"list\.txt: 1 of 3 classes have no image: 2"):
        ImageFiles.from_list(tmp_path / "list.txt", tmp_path, ["0", "1", "2"])
    (tmp_path / "list.txt").write_text("\n")
    with pytest.raises(ValueError, match="names no images"):
        ImageFiles.from_list(tmp_path / "list.txt", tmp_path)


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ("122", r"1 of 3 .* image: 0\. Labels count from 0, and these begin with 1"),
        ("133", r"2 of 4 classes have no image: 0, 2\. List images of these classes, or n"),
        ("022", r"1 of 3 classes have no image: 1\. List images of these classes, or numb"),
    ],
)
def test_lists_with_gaps_are_told_what_to_do(tmp_path: Path, labels: str, words: str) -> None:
    touch(tmp_path, "1.jpg")
    table, lines = tmp_path / "t.csv", tmp_path / "list.txt"
    table.write_text("path,label\n" + "".join(f"1.jpg,{label}\n" for label in labels))
    lines.write_text("".join(f"1.jpg {label}\n" for label in labels))
    for file in (table, lines):
        with pytest.raises(ValueError, match=words):
            ImageFiles.from_list(file, tmp_path)


def test_parts_that_do_not_belong_together(tmp_path: Path) -> None:
    touch(tmp_path, "1.jpg", "2.jpg")
    for labels, words in (
        ([0], "2 paths but 1 labels"),
        ([0, 2], r"2\.jpg has the label 2, but the 2 classes are 0\.\.1"),
        ([0.0, 1.0], "must be int64"),
    ):
        with pytest.raises(ValueError, match=words):
            ImageFiles(("1.jpg", "2.jpg"), torch.tensor(labels), ("a", "b"), tmp_path)


@pytest.fixture
def paths() -> list[str]:
    return [f"train/{number % 7}/image {number}.jpg" for number in range(500)]


def test_every_one_is_looked_for(tmp_path: Path, paths: list[str]) -> None:
    touch(tmp_path, *paths)
    image_files.check_all(tmp_path, paths)
    (tmp_path / "elsewhere").mkdir()
    image_files.check_all(tmp_path / "elsewhere", [str(tmp_path / paths[0])])  # needs no root
    gone = [3, 4, 77, 78, 79, 80, 81, 310]
    for row in gone:
        (tmp_path / paths[row]).unlink()
    (tmp_path / paths[4]).mkdir()  # a folder is no image
    with pytest.raises(FileNotFoundError) as caught:
        image_files.check_all(tmp_path, paths)
    words = str(caught.value)
    assert words.startswith(f"8 of 500 images are not in {tmp_path}:")
    assert all(paths[row] in words for row in gone[:5]) and paths[81] not in words
    assert "and 3 more" in words and "Name the folder that these paths start from" in words
    with pytest.raises(FileNotFoundError, match="2 of 3 images"):  # a whole folder is away
        image_files.check_all(tmp_path, [paths[0], "b/2.jpg", f"{paths[0]}/3.jpg"])


def test_one_folder_too_deep_or_too_high(tmp_path: Path, paths: list[str]) -> None:
    touch(tmp_path / "data", *paths)
    for wrong in (tmp_path / "data" / "train", tmp_path):
        with pytest.raises(FileNotFoundError) as caught:
            image_files.check_all(wrong, paths)
        assert str(caught.value).startswith("500 of 500 images are not in")
        assert f"found from {tmp_path / 'data'}: name that folder" in str(caught.value)


def test_no_such_root(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FileNotFoundError, match="away, does not exist"):
        image_files.check_all(tmp_path / "away", ["a.jpg"])
    with pytest.raises(FileNotFoundError, match="is a file, not a folder"):
        image_files.check_all(tmp_path / "file", ["a.jpg"])
