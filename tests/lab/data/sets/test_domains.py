"""Domains share their classes, as files, in memory or by lists; each is split by itself."""

from __future__ import annotations

import hashlib
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from batchformer.lab.data.files.image_files import ImageFiles
from batchformer.lab.data.sets.domains import (
    DomainFiles,
    Domains,
    DomainSplit,
    domain_folders,
    domain_lists,
    domain_tree,
    split_domain,
)
from batchformer.lab.data.sets.images import ImageSplit
from helpers.data_files import one_of_each, touch

#: Images of each class in each domain.
TREE = {"paint": {"cat": 2, "dog": 1}, "photo": {"cat": 1, "emu": 3}, "line": {"dog": 2}}


def make(root: Path, tree: dict[str, dict[str, int]]) -> Path:
    counts = ((f"{domain}/{name}", n) for domain, own in tree.items() for name, n in own.items())
    return touch(root, *(f"{folder}/{number}.jpg" for folder, n in counts for number in range(n)))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return make(tmp_path / "set", TREE)


def test_classes_are_those_of_all_domains(tree: Path) -> None:
    found = domain_tree(tree)
    assert found.name == "set"
    assert found.domains == ("line", "paint", "photo") and found.classes == ("cat", "dog", "emu")
    assert found.counts.tolist() == [[0, 2, 0], [2, 1, 0], [1, 0, 3]]
    assert found.sizes == {"line": 2, "paint": 3, "photo": 4}
    photo = found.parts[2]
    assert photo.paths == ("photo/cat/0.jpg", *(f"photo/emu/{n}.jpg" for n in range(3)))
    assert photo.labels.tolist() == [0, 2, 2, 2] and photo.root == found.parts[0].root == tree
    two = domain_folders("two", tree, {"b": "line", "a": "photo"})
    assert two.domains == ("a", "b") and two.counts.tolist() == [[1, 0, 3], [0, 2, 0]]


def test_what_is_no_domain_is_passed_over(tree: Path) -> None:
    touch(tree, "image_list/photo.txt", "splits/seed_0/train.json", "poster.jpg")
    touch(tree, "preview/all.png", "photo/readme.txt", "photo/cat/Thumbs.db")
    touch(tree, ".Trash-1000/files/deleted.jpg")
    for domain in TREE:
        (tree / domain / "ant").mkdir()  # a folder that is empty in every domain is no class
    found = domain_tree(tree)
    assert found.sizes == {"line": 2, "paint": 3, "photo": 4}
    assert found.classes == ("cat", "dog", "emu") and found.parts[1].labels.tolist() == [0, 0, 1]


def test_trees_that_are_none(tree: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"none is not a folder.*<domain>/<class>/<image>"):
        domain_tree(tmp_path / "none")
    with pytest.raises(FileNotFoundError, match=r"\(cat, emu\) has .* name the folder above"):
        domain_tree(tree / "photo")
    with pytest.raises(FileNotFoundError, match="it has no folders with images"):
        domain_tree(tree / "photo/cat")
    with pytest.raises(ValueError, match=r"one domain only, set.*/<domain>/<class>/<image>"):
        domain_tree(tmp_path)
    touch(tmp_path / "photos", "Train/cat/1.jpg", "val/cat/1.jpg")
    with pytest.raises(ValueError, match=r"folders Train, val, which are parts.*recipe my_folder"):
        domain_tree(tmp_path / "photos")


def test_rows_of_some_domains_joined(tree: Path) -> None:
    found = domain_tree(tree)
    files, domain = found.joined({"photo": torch.tensor([3, 0]), "line": torch.tensor([1])})
    assert files.paths == ("photo/emu/2.jpg", "photo/cat/0.jpg", "line/dog/1.jpg")
    assert files.labels.tolist() == [2, 0, 1] and domain.tolist() == [0, 0, 1]
    assert files.classes == found.classes and domain.dtype == torch.int64
    found.check_all()
    (tree / "line/dog/1.jpg").unlink()
    with pytest.raises(FileNotFoundError, match=r"line/dog/1\.jpg"):
        found.check_all()


def test_files_that_are_not_of_one_set(tree: Path) -> None:
    line, paint, _ = domain_tree(tree).parts
    classes = line.classes
    alone = ImageFiles(line.paths, line.labels, (*classes, "fly"), tree)
    moved = ImageFiles(("dog/0.jpg",), torch.tensor([1]), classes, tree / "line")
    for domains, parts, words in (
        ("ba", (line, paint), "sorted and differ, got b, a"),
        ("ab", (paint, alone), "set, b: its classes are not those of the set"),
        ("ab", (line, paint), "1 of 3 classes have no image in any domain: emu"),
    ):
        with pytest.raises(ValueError, match=words):
            DomainFiles("set", tuple(domains), classes, parts)
    with pytest.raises(ValueError, match=r"paths start from .*set, .*line: name one"):
        ImageFiles.concatenated((line, moved))


def images(*labels: int) -> ImageSplit:
    x = torch.tensor(labels, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 4, 4)
    return ImageSplit(x.clone(), torch.tensor(labels, dtype=torch.int64))


def test_images_of_several_domains() -> None:
    data = Domains("set", ("a", "b"), ("x", "y", "z"), (images(0, 0, 2), images(1, 2)))
    assert data.counts.tolist() == [[2, 0, 1], [0, 1, 1]] and data.sizes == {"a": 3, "b": 2}
    part, domain = data.joined({"b": torch.tensor([1, 0]), "a": torch.tensor([1])})
    assert part.labels.tolist() == [2, 1, 0] and domain.tolist() == [0, 0, 1]
    assert torch.equal(part.x[:, 0, 0, 0].long(), part.labels)


def test_the_hash_knows_every_domain_image_and_label() -> None:
    def made(pixel: int = 0, label: int = 0, domain: str = "b") -> Domains:
        parts = [ImageSplit(torch.zeros(2, 1, 2, 2).byte(), torch.tensor([0, 1])) for _ in "ab"]
        parts[1].x[1, 0, 1, 1], parts[1].labels[0] = pixel, label
        return Domains("some", ("a", domain), ("x", "y"), tuple(parts))

    assert made().split_sha256 == made().split_sha256
    others = (made(pixel=1), made(label=1), made(domain="c"))
    assert len({made().split_sha256, *(other.split_sha256 for other in others)}) == 4


def test_the_hash_of_files_is_of_paths_and_labels(tmp_path: Path) -> None:
    def made(*paths: str, root: Path = tmp_path) -> DomainFiles:
        parts = (("a/x/1.jpg",), paths)
        touch(root, "a/x/1.jpg", *paths)
        files = tuple(
            ImageFiles(own, torch.arange(len(own)) % 2, ("x", "y"), root) for own in parts
        )
        return DomainFiles("some", ("a", "b"), ("x", "y"), files)

    first = made("b/x/1.jpg", "b/y/1.jpg").split_sha256
    assert made("b/x/1.jpg", "b/y/1.jpg", root=tmp_path / "moved").split_sha256 == first
    assert made("b/x/1.jpg", "b/y/2.jpg").split_sha256 != first


CLASSES = ("dog", "cat", "ant")  # not sorted: the numbers of the lists stay as they are


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return one_of_each(tmp_path, ("a", "b c"), CLASSES)


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
    assert found.domains == ("a", "b") and found.classes == CLASSES and found.parts[0].root == root
    assert [part.labels.tolist() for part in found.parts] == [[1, 2], [0, 1]]
    assert found.parts[1].paths == ("b c/dog/1.jpg", "b c/cat/1.jpg")


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
    assert found.parts[0].labels.tolist() == [0, 1, 2] and len(found.parts[1]) == 3
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
    touch(root, "a/0.jpg", "a/1.jpg")
    file = root / "a.txt"
    file.write_text("a/0.jpg 0\n\na/1.jpg 1\n")
    found = domain_lists("set", root, {"a": [file], "b": [file]}, classes=2)
    assert found.classes == ("0", "1") and found.counts.tolist() == [[1, 1], [1, 1]]


def test_labels_outside(root: Path) -> None:
    file = write(root, "a.txt", 0, *(("a", own) for own in CLASSES))
    empty = root / "empty.txt"
    empty.touch()
    for own, words in (
        (file, r"a.txt: a/ant/1.jpg has the label 2, .* 2 classes are 0..1"),
        (empty, r"empty.txt names no images"),
    ):
        with pytest.raises(ValueError, match=words):
            domain_lists("set", root, {"a": [own]}, classes=2)


# The split of each domain.

SIZES = {"photo": 40, "art": 50, "sketch": 61}


@settings(max_examples=40)
@given(st.integers(0, 300), st.integers(0, 99), st.integers(0, 2**31), st.integers(0, 5))
def test_rows_are_kept_or_held(count: int, percent: int, seed: int, number: int) -> None:
    kept, held = split_domain(count, percent / 100, seed, number)
    assert len(held) == int(Decimal(percent) / 100 * count)
    for rows in (kept, held):
        assert rows.dtype == torch.int64 and rows.tolist() == sorted(rows.tolist())
    assert sorted([*kept.tolist(), *held.tolist()]) == list(range(count))


def test_seeds_and_domains_draw_differently() -> None:
    def held(seed: int, number: int) -> list[int]:
        return split_domain(100, 0.2, seed, number)[1].tolist()

    assert len({tuple(held(seed, number)) for seed in range(3) for number in range(4)}) == 12


def test_every_row_is_held_as_often_as_the_others() -> None:
    times = torch.zeros(20)
    for seed in range(200):
        times[split_domain(20, 0.25, seed, 0)[1]] += 1
    # 200 draws with probability 1/4: a standard deviation of 6.1 around 50.
    assert (times - 50).abs().max() < 4 * 6.1


def test_sources_and_target() -> None:
    split = DomainSplit(SIZES, ("photo", "sketch"), "art", seed=3)
    assert list(split.train) == list(split.val) == ["photo", "sketch"]
    for number, domain in ((1, "photo"), (2, "sketch")):
        kept, held = split_domain(SIZES[domain], 0.2, 3, number)
        assert torch.equal(split.train[domain], kept) and torch.equal(split.val[domain], held)
    assert torch.equal(split.target_in, split_domain(50, 0.2, 3, 0)[0])
    assert split.target_all.tolist() == list(range(50))
    other = DomainSplit(SIZES, ("art",), "photo", seed=3)  # the same, whatever its part
    assert torch.equal(split.target_in, other.train["art"])
    assert torch.equal(other.target_in, split.train["photo"])


def test_the_hash_is_that_of_every_row() -> None:
    split = DomainSplit(SIZES, ("photo",), "art", seed=3, fraction=0.1)
    words: list[list[int]] = []
    for number, kept, held in (
        (1, split.train["photo"], split.val["photo"]),
        (0, split.target_in, torch.from_numpy(np.setdiff1d(split.target_all, split.target_in))),
    ):
        words += [[number, len(kept)], kept.tolist(), [len(held)], held.tolist()]
    expected = hashlib.sha256(np.concatenate(words).astype("<i8").tobytes()).hexdigest()
    assert split.split_sha256 == expected


def test_domains_that_cannot_be_split() -> None:
    for sources in ((), ("art", "photo"), ("photo", "photo")):
        with pytest.raises(ValueError, match="each once, and not the target"):
            DomainSplit(SIZES, sources, "art", seed=0)
    with pytest.raises(ValueError, match=r"b has 4 images, too few to hold out 0.2"):
        DomainSplit({"a": 9, "b": 4}, ("b",), "a", seed=0)
    small = DomainSplit({"a": 4, "b": 4}, ("b",), "a", seed=0, fraction=0)
    assert small.train["b"].tolist() == [0, 1, 2, 3] and not len(small.val["b"])
