"""Lists of domains: labels from 0 or from 1, parts merged, names by folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from batchformer.lab.data.sets.domains import domain_lists

CLASSES = ("dog", "cat", "ant")  # not sorted: the numbers of the lists stay as they are


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for domain in ("a", "b c"):
        for name in CLASSES:
            (tmp_path / domain / name).mkdir(parents=True)
            (tmp_path / domain / name / "1.jpg").touch()
    return tmp_path


def write(root: Path, name: str, first: int, *lines: tuple[str, str]) -> Path:
    """A list of the images of (domain, class), with labels that begin at `first`."""
    file = root / name
    images = (f"{domain}/{own}/1.jpg {CLASSES.index(own) + first}" for domain, own in lines)
    file.write_text("\n".join(images))
    return file


@pytest.mark.parametrize("first", [0, 1])
def test_labels_begin_at_0_or_1(root: Path, first: int) -> None:
    """That no domain has all classes by itself does not matter."""
    a = write(root, "a.txt", first, ("a", "cat"), ("a", "ant"))
    b = write(root, "b.txt", first, ("b c", "dog"), ("b c", "cat"))
    found = domain_lists("set", root, {"b": [b], "a": [a]}, classes=3)
    assert found.domains == ("a", "b") and found.classes == CLASSES and found.root == root
    assert [part.labels.tolist() for part in found.files] == [[1, 2], [0, 1]]
    assert found.files[1].paths == ("b c/dog/1.jpg", "b c/cat/1.jpg")


def test_labels_from_0_that_lack_the_first_class(root: Path) -> None:
    """Labels 1 and 2 of 3 classes do not begin at 1: the largest would be 3."""
    file = write(root, "a.txt", 0, ("a", "cat"), ("a", "ant"))
    with pytest.raises(ValueError, match="1 of 3 classes have no image in any domain: 0"):
        domain_lists("set", root, {"a": [file], "b": [file]}, classes=3)


def test_parts_are_merged_and_repeated_images_counted_once(root: Path) -> None:
    train = write(root, "a_train.txt", 1, ("a", "dog"), ("a", "cat"))
    val = write(root, "a_val.txt", 1, ("a", "ant"))
    every = write(root, "a_test.txt", 1, *(("a", own) for own in CLASSES))
    found = domain_lists("set", root, {"a": [train, val, every], "b": [every]}, classes=3)
    assert found.files[0].labels.tolist() == [0, 1, 2] and len(found.files[1]) == 3
    every.write_text("a/dog/1.jpg 2")
    with pytest.raises(ValueError, match=r"a_test.txt, line 1: a/dog/1.jpg has the label 2 here"):
        domain_lists("set", root, {"a": [train, every], "b": [every]}, classes=3)


def test_lists_of_different_numberings_are_refused(root: Path) -> None:
    a = write(root, "a.txt", 0, *(("a", own) for own in CLASSES))
    b = root / "b.txt"
    b.write_text("\n".join(f"b c/{own}/1.jpg {n}" for n, own in enumerate(sorted(CLASSES))))
    with pytest.raises(ValueError, match=r"b c/ant/1.jpg has the label 0 .* images of dog have"):
        domain_lists("set", root, {"a": [a], "b": [b]}, classes=3)


def test_images_without_folders_of_classes_leave_numbers(root: Path) -> None:
    for number in range(2):
        (root / "a" / f"{number}.jpg").touch()
    file = root / "a.txt"
    file.write_text("a/0.jpg 0\n\na/1.jpg 1\n")
    found = domain_lists("set", root, {"a": [file], "b": [file]}, classes=2)
    assert found.classes == ("0", "1") and found.counts.tolist() == [[1, 1], [1, 1]]


def test_labels_outside(root: Path) -> None:
    file = write(root, "a.txt", 0, *(("a", own) for own in CLASSES))
    with pytest.raises(ValueError, match=r"a/ant/1.jpg has the label 2, .* 2 classes are 0..1"):
        domain_lists("set", root, {"a": [file]}, classes=2)
    file.write_text("")
    with pytest.raises(ValueError, match=r"a.txt names no images"):
        domain_lists("set", root, {"a": [file]}, classes=2)
