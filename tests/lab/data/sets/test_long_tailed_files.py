"""Known and own long-tailed sets of files, and published class sizes."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path

import pytest

from batchformer.lab.data.files.image_files import ImageFiles
from batchformer.lab.data.sets.image_layouts import ANNOTATED, lists_of
from batchformer.lab.data.sets.long_tailed_files import (
    LongTailedFiles,
    annotated,
    class_names,
    imagenet,
    own_files,
    with_at_most,
)
from helpers.data_files import touch

TRAIN = ["train/ant hill/1.jpg 0", "train/ant hill/2.jpg 0", "train/bee/1.jpg 1"]
TEST = ["val/ant hill/7.jpg 0", "val/bee/7.jpg 1"]


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Places-LT of three training images."""
    touch(tmp_path, *(line.rpartition(" ")[0] for line in TRAIN + TEST))
    small = dataclasses.replace(
        ANNOTATED["places_lt"], classes=2, images=3, most=2, fewest=1, tested=2, validated=1
    )
    monkeypatch.setitem(ANNOTATED, "places_lt", small)
    write(tmp_path, train=TRAIN, test=TEST, val=TEST[:1])
    return tmp_path


def write(root: Path, **lists: list[str]) -> None:
    for part, lines in lists.items():
        (root / f"Places_LT_{part}.txt").write_text("\n".join(lines) + "\n")


def test_a_known_data_set(places: Path) -> None:
    found = annotated("places_lt", lists_of("places_lt", places), with_val=True)
    assert found.classes == found.test.classes == ("ant hill", "bee")
    assert found.train_counts.tolist() == [2, 1] and len(found.test) == 2 and found.val is not None
    assert len(found.val) == 1 and found.untested == [] and found.name == "Places-LT"
    text = "".join(f"{line}\n" for line in TRAIN)
    assert found.train.sha256 == hashlib.sha256(text.encode()).hexdigest()
    assert annotated("places_lt", lists_of("places_lt", places)).val is None
    val = annotated("places_lt", lists_of("places_lt", places, part="val"))
    assert len(val.test) == 1 and val.untested == ["bee"]
    assert val.train.sha256 == found.train.sha256 and val.split_sha256 != found.split_sha256
    found.check_all()
    (places / "val/bee/7.jpg").unlink()
    with pytest.raises(FileNotFoundError, match=r"val/bee/7\.jpg"):
        found.check_all()


@pytest.mark.parametrize(
    ("lists", "words"),
    [
        ({"train": TRAIN[1:]}, "names 2 images, 1 of the largest class and 1 of the smallest"),
        ({"train": [*TRAIN[:2], "train/ant hill/1.jpg 1"], "test": TEST[:0]}, "names no images"),
        ({"test": TEST * 2}, "it names 4 images instead of 2 or 1"),
        ({"val": TEST}, "it names 2 images instead of 1"),
        ({"train": TRAIN[:2]}, "1 of 2 classes have no image"),
    ],
)
def test_another_list_is_refused(places: Path, lists: dict[str, list[str]], words: str) -> None:
    write(places, **lists)
    with pytest.raises(ValueError, match=words):
        annotated("places_lt", lists_of("places_lt", places), with_val=True)


def test_a_list_is_held_against_the_published_numbers_of_every_class(places: Path) -> None:
    """They are found beside the images as well as beside the list."""
    lists, published = lists_of("places_lt", places), places / "Places_LT_cls_freq.json"
    elsewhere = places / "lists" / "train.txt"
    elsewhere.parent.mkdir()
    elsewhere.write_bytes(lists.train.read_bytes())
    for own in (lists, dataclasses.replace(lists, train=elsewhere)):
        published.write_text("[2, 1]")
        assert annotated("places_lt", own).train_counts.tolist() == [2, 1]
        for text, words in (
            ("[2, 1", "is no complete"),
            ("[2, 1, 2]", "is no list of 2 numbers"),
            ("{}", "is no list of 2 numbers"),
            ("[1, 2]", "disagree.* 2 of 2 classes: class 0 has 2 instead of 1, class 1 has 1"),
        ):
            published.write_text(text)
            with pytest.raises(ValueError, match=rf"Places_LT_cls_freq\.json {words}"):
                annotated("places_lt", own)


def test_names_of_classes(tmp_path: Path) -> None:
    paths = ("a/b/c/1.jpg", "a/d/1.jpg", "1.jpg")
    touch(tmp_path, *paths)
    (tmp_path / "list.txt").write_text("".join(f"{p} {c}\n" for c, p in enumerate(paths)))
    assert class_names(ImageFiles.from_list(tmp_path / "list.txt", tmp_path)) == ("b/c", "d", "2")


@pytest.mark.parametrize(
    ("train", "part"), [("train", "test"), ("Train", "VAL"), ("Training", "validation")]
)
def test_folders_of_classes(tmp_path: Path, train: str, part: str) -> None:
    touch(tmp_path / train, "b/1.jpg", "b/2.png", "a/1.jpg", "c/1.jpg")
    touch(tmp_path, f"{part}/b/1.jpg", f"{part}/c/1.jpg")
    found = own_files(tmp_path)
    assert len(found.remarks) == 1 and found.remarks[0].startswith("1 of 3 classes have training")
    assert found.remarks[0].endswith(" no test image, so no score covers them: a")
    assert found.classes == found.test.classes == ("a", "b", "c")
    assert found.train_counts.tolist() == [1, 2, 1] and found.test.labels.tolist() == [1, 2]
    assert found.name == tmp_path.name and found.untested == ["a"]
    touch(tmp_path, f"{part}/a/1.jpg")
    again = own_files(tmp_path)
    assert again.train.sha256 == found.train.sha256 and again.remarks == ()
    assert again.split_sha256 != found.split_sha256, "there is one more test image"


def test_folders_that_are_wrong(tmp_path: Path) -> None:
    """Each after some more files are there."""
    neither = r"no folder of training images and none of test images.*tree/train/<class>.*tree/test"
    for files, place, words in (
        ((), None, r"--data\.root"),
        ((), "away", r"away is not a folder.*<class>/<image>"),
        (("own.csv",), "own.csv", r"is a file.*--data\.train-list .*own\.csv, one"),
        (
            ("tree/a/1.jpg", "tree/b/1.jpg"),
            "tree",
            neither + r".*--data\.train-list and.*test-list",
        ),
        # One class teaches nothing.
        (("one/a/1.jpg", "one/a/2.jpg"), "one", "none of test images.*with two classes or more"),
        (("tree/test/a/1.jpg",), "tree", r"no folder of training images\. Expected"),
        (("train/a/1.jpg",), "", r"no folder of test images\..*test/<class>"),
    ):
        touch(tmp_path, *files)
        with pytest.raises(FileNotFoundError, match=words):
            own_files(None if place is None else tmp_path / place)
    touch(tmp_path, "test/a/1.jpg", "test/z/1.jpg")
    with pytest.raises(ValueError, match=r"no classes of the training images \(1\): z"):
        own_files(tmp_path)


def test_one_tree_is_divided_class_by_class_by_a_seed(tmp_path: Path) -> None:
    sizes = {"ant": 1, "bee": 2, "cow": 7, "dog": 30}
    every = [f"{name}/{i}.jpg" for name, size in sizes.items() for i in range(size)]
    touch(tmp_path / "tree", *every)
    found = own_files(tmp_path / "tree", seed=3)
    assert found.classes == found.test.classes == tuple(sizes)
    assert found.test.counts.tolist() == [0, 1, 1, 6]
    assert found.train_counts.tolist() == [1, 1, 6, 24]
    assert sorted([*found.train.paths, *found.test.paths]) == sorted(every)
    for part in (found.train, found.test):
        labels = [found.classes.index(path.split("/")[0]) for path in part.paths]
        assert part.labels.tolist() == labels
    said, untested = found.remarks
    assert "8 of 40 images, drawn by data.seed 3" in said and found.split_sha256[:12] in said
    assert untested.endswith("no score covers them: ant")
    again, other = own_files(tmp_path / "tree", seed=3), own_files(tmp_path / "tree", seed=4)
    assert again.split_sha256 == found.split_sha256 != other.split_sha256
    touch(tmp_path / "tree", "dog/new.jpg")  # the same images are tested, or one of them is not
    assert len({*found.test.paths} - {*own_files(tmp_path / "tree", seed=3).test.paths}) <= 1


def test_dead_links_in_a_tree_are_named(tmp_path: Path) -> None:
    touch(tmp_path, "ant/1.jpg", "ant/2.jpg", "bee/1.jpg")
    (tmp_path / "bee/2.jpg").symlink_to(tmp_path / "gone.jpg")
    with pytest.raises(FileNotFoundError, match=r"1 of . images (.|\n)*bee/2\.jpg"):
        own_files(tmp_path).check_all()


def test_one_of_two_parts_is_not_taken_for_a_tree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    touch(tmp_path / "photos/train", "a/1.jpg", "a/2.jpg", "b/1.jpg")
    assert own_files(tmp_path / "photos/train").split_seed == 0, "there is no other part"
    touch(tmp_path / "photos/val", "a/1.jpg", "a/2.jpg", "b/1.jpg")
    for part in ("train", "val"):
        with pytest.raises(
            FileNotFoundError, match=r"mean the folder above\? --data\.root .*photos$"
        ):
            own_files(tmp_path / "photos" / part)
    monkeypatch.chdir(tmp_path / "photos/train")
    with pytest.raises(FileNotFoundError, match=rf"--data\.root {tmp_path / 'photos'}$"):
        own_files(".")
    assert own_files(tmp_path / "photos").split_seed is None


def test_a_tree_of_domains_is_not_taken_for_one_of_classes(tmp_path: Path) -> None:
    inside = [f"{domain}/{name}/1.jpg" for domain in ("art", "photo") for name in ("cat", "dog")]
    touch(tmp_path / "photos", *inside)
    words = r"\(art, photo\) have no images beside .* each: cat, dog\. .*recipe my_domains"
    with pytest.raises(ValueError, match=words):
        own_files(tmp_path / "photos")
    # With an image beside the folders, or with one folder in each, these are classes.
    touch(tmp_path / "photos", "art/2.jpg")
    assert own_files(tmp_path / "photos").classes == ("art", "photo")
    touch(tmp_path / "one", "cat/images/1.jpg", "cat/images/2.jpg", "dog/images/1.jpg")
    assert own_files(tmp_path / "one").classes == ("cat", "dog")


def test_lists_and_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path, "images/1.jpg", "images/2.jpg", "images/3.jpg")
    (tmp_path / "train.csv").write_text("path,label\n1.jpg,cat\n2.jpg,ant\n")
    (tmp_path / "test.csv").write_text("path,label\n3.jpg,cat\n")
    lists = [str(tmp_path / "train.csv"), str(tmp_path / "test.csv")]
    found = own_files(tmp_path / "images", *lists)
    assert found.remarks[0].endswith("no score covers them: ant")
    assert found.classes == ("ant", "cat") and found.test.labels.tolist() == [1]
    (tmp_path / "train.txt").write_text("images/1.jpg 0\nimages/2.jpg 1\n")
    (tmp_path / "test.txt").write_text("images/3.jpg 0\nimages/1.jpg 1\n")
    plain = own_files(None, str(tmp_path / "train.txt"), str(tmp_path / "test.txt"))
    said = "1 of 2 test images are training images too, so scores are not of new images"
    assert plain.remarks == (f"{said}: images/1.jpg",)
    assert plain.classes == ("0", "1") and plain.train.root == tmp_path
    touch(tmp_path, "lists/4.jpg")  # the same image by another path
    (tmp_path / "lists/test.txt").write_text("4.jpg 0\n./../images/./1.jpg 1\n")
    monkeypatch.chdir(tmp_path)
    other = own_files(None, "train.txt", str(tmp_path / "lists/test.txt"))
    assert other.remarks == (f"{said}: ./../images/./1.jpg",)
    with pytest.raises(ValueError, match="or neither"):
        own_files(tmp_path, lists[0])
    with pytest.raises(FileNotFoundError, match="there is no list"):
        own_files(tmp_path, lists[0] + "x", lists[1])
    (tmp_path / "test.txt").write_text("images/3.jpg 2\n")
    with pytest.raises(ValueError, match="line 1: '2' is none of the 2 classes: 0, 1"):
        own_files(None, str(tmp_path / "train.txt"), str(tmp_path / "test.txt"))
    with pytest.raises(ValueError, match="mine, test part: its classes are not those of the set"):
        LongTailedFiles(found.train, plain.test, found.classes, "mine")


def test_images_that_a_list_names_several_times_are_said(tmp_path: Path) -> None:
    touch(tmp_path, *(f"{i}.jpg" for i in range(5)))
    lists = [tmp_path / "train.csv", tmp_path / "test.csv"]
    lists[0].write_text("path,label\n0.jpg,ant\n1.jpg,ant\n1.jpg,ant\n2.jpg,bee\n2.jpg,ant\n")
    lists[1].write_text("path,label\n3.jpg,ant\n4.jpg,bee\n")
    listed = "2 of 3 training images are listed more than once, 1 of them with several labels"
    assert own_files(None, *map(str, lists)).remarks == (f"{listed}: 1.jpg, 2.jpg",)
    lists[0].write_text("path,label\n0.jpg,ant\n1.jpg,bee\n")
    lists[1].write_text("path,label\n3.jpg,ant\n4.jpg,bee\n4.jpg,bee\n")
    listed = "1 of 2 test images are listed more than once, 0 of them with several labels: 4.jpg"
    assert own_files(None, *map(str, lists)).remarks == (listed,)


def test_imagenet_is_scored_on_val(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "imagenet"
    touch(place, "train/n1/a.JPEG", "train/n1/b.JPEG", "train/n2/a.JPEG", "val/n2/v.JPEG")
    touch(place, "test/no_labels.JPEG", "val/n1/v.JPEG")
    monkeypatch.setenv("BATCHFORMER_DATA", str(tmp_path))
    for found in (imagenet(str(place)), imagenet()):
        assert found.name == "ImageNet" and found.classes == ("n1", "n2")
        assert found.train_counts.tolist() == [2, 1]
        assert found.test.paths == ("n1/v.JPEG", "n2/v.JPEG") and found.untested == []
    touch(place, "val/n3/v.JPEG")
    with pytest.raises(ValueError, match=r"no classes of the training images \(1\): n3"):
        imagenet(str(place))
    with pytest.raises(FileNotFoundError, match=r"ImageNet not found(.|\n)*image-net\.org"):
        imagenet(str(tmp_path / "elsewhere"))


def test_fewer_images_of_each_class_are_nested_and_drawn_by_the_seed(tmp_path: Path) -> None:
    sizes = {"ant": 9, "bee": 4, "cat": 2}
    touch(tmp_path, *(f"train/{name}/{i}.jpg" for name, n in sizes.items() for i in range(n)))
    touch(tmp_path, *(f"test/{name}/7.jpg" for name in sizes))
    data = own_files(tmp_path)
    drawn = {n: with_at_most(data, n, 0) for n in (1, 3, 5, 20)}
    for n, fewer in drawn.items():
        assert fewer.train_counts.tolist() == [min(n, size) for size in sizes.values()]
        for path, label in zip(fewer.train.paths, fewer.train.labels.tolist(), strict=True):
            assert path.startswith(data.classes[label])
        assert fewer.test.paths == data.test.paths
    for small, large in ((1, 3), (3, 5), (5, 20)):
        assert set(drawn[small].train.paths) < set(drawn[large].train.paths)
    assert drawn[20].train.paths == with_at_most(data, 0, 0).train.paths == data.train.paths
    assert len({with_at_most(data, 3, seed).train.paths for seed in range(5)}) > 1
