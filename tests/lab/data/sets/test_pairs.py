"""Pairs of attributes and objects: closed and open world, their files, and tables of them."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from batchformer.lab.data.files.image_files import ImageFiles
from batchformer.lab.data.sets.pairs import (
    Compositions,
    Pair,
    PairFiles,
    PairImage,
    pair_names,
    pair_table,
    read_pairs,
    remarks_on,
    write_pair_table,
)
from helpers.data_files import touch

words = st.sampled_from(["burnt", "old", "wet", "Faux.Fur", "ancient", "Boots.Mid-Calf"])
some_pairs = st.lists(st.tuples(words, words), max_size=12)
some_train = st.lists(st.tuples(words, words), min_size=1, max_size=12)


def flagged(compositions: Compositions, flags: torch.Tensor) -> set[Pair]:
    return {pair for pair, on in zip(compositions.names, flags.tolist(), strict=True) if on is True}


@settings(max_examples=20)
@given(some_train, some_pairs, some_pairs)
def test_the_closed_world(train: list[Pair], val: list[Pair], test: list[Pair]) -> None:
    made = Compositions.of(train, val, test)
    union = {*train, *val, *test}
    assert list(made.names) == sorted(union) and len(made) == len(union)
    assert list(made.attributes) == sorted({attribute for attribute, _ in union})
    assert list(made.objects) == sorted({thing for _, thing in union})
    for flags, part in ((made.seen, train), (made.val, val), (made.test, test)):
        assert flags.dtype == torch.bool and flagged(made, flags) == {*part}
    for numbers in (made.attribute, made.object):
        assert numbers.dtype == torch.int64 and numbers.shape == (len(union),)
    assert flagged(made, made.candidates("train")) == {*train}
    assert flagged(made, made.candidates("val")) == {*train, *val}
    assert flagged(made, made.candidates("test")) == {*train, *test}
    with pytest.raises(ValueError, match="no pair to train on"):
        Compositions.of([], val, test)


@settings(max_examples=20)
@given(some_train, some_pairs, some_pairs)
def test_the_open_world(train: list[Pair], val: list[Pair], test: list[Pair]) -> None:
    closed = Compositions.of(train, val, test)
    made = closed.opened()
    assert made.names == tuple(product(closed.attributes, closed.objects))
    assert (made.attributes, made.objects) == (closed.attributes, closed.objects)
    for flags, part in ((made.seen, train), (made.val, val), (made.test, test)):
        assert flags.dtype == torch.bool and flagged(made, flags) == {*part}
    assert made.opened().names == made.names


IMAGES = [
    PairImage("a/1.jpg", "wet", "dog", "train"),
    PairImage("a/2.jpg", "old", "cat", "train"),
    PairImage("b/3.jpg", "wet", "cat", "test"),
    PairImage("b/4.jpg", "old", "cat", "test"),
    PairImage("b/5.jpg", "old", "dog", "val"),
    PairImage("b/é.jpg", "wet", "dog", "train"),
]


def on_disk(root: Path, images: Sequence[PairImage] = IMAGES) -> Path:
    return touch(root, *(image.image for image in images))


def test_parts_and_labels(tmp_path: Path) -> None:
    made = PairFiles.of("some", on_disk(tmp_path), IMAGES, remarks=["look"], skipped={"NA": 2})
    names = made.compositions.names
    for phase in ("train", "val", "test"):
        part = made.part(phase)
        assert part.classes == ("old cat", "old dog", "wet cat", "wet dog")
        shown = [names[label] for label in part.labels.tolist()]
        own = [image for image in IMAGES if image.split == phase]
        assert list(part.paths) == [image.image for image in own] and part.root == tmp_path
        assert shown == [image.pair for image in own]
    assert made.sizes == {"train": 3, "val": 1, "test": 2}
    assert made.compositions.seen.tolist() == [True, False, False, True]
    assert made.remarks == ("look",) and made.skipped == {"NA": 2}
    made.check_all()
    (tmp_path / "b/4.jpg").unlink()
    with pytest.raises(FileNotFoundError, match=r"1 of 2 images .*\n  b/4.jpg"):
        made.check_all()


def test_the_pairs_may_be_given(tmp_path: Path) -> None:
    wider = Compositions.of(
        [("wet", "dog"), ("old", "cat"), ("new", "cat")], [("old", "dog")], [("wet", "cat")]
    )
    made = PairFiles.of("some", on_disk(tmp_path), IMAGES, wider)
    assert made.train.classes == pair_names(wider) and "new cat" in made.test.classes
    assert made.train.counts.sum() == 3
    few = Compositions.of([("wet", "dog"), ("old", "cat")], [("old", "dog")], [])
    with pytest.raises(ValueError, match=r"some: b/3.jpg shows wet cat, no pair of the set"):
        PairFiles.of("some", tmp_path, IMAGES, few)


def test_images_of_pairs_that_their_part_cannot_show(tmp_path: Path) -> None:
    on_disk(tmp_path)
    for train, said in (
        (
            [("wet", "dog")],
            "images of train \\(1 of them\\) .* not seen; the first is a/2.jpg: old cat",
        ),
        ([("wet", "dog"), ("old", "cat")], "of val .* neither seen nor one of val; .*: old dog"),
    ):  # a seen pair may be validated though no list says so
        pairs = Compositions.of(train, [("wet", "cat")], [("old", "cat"), ("old", "dog")])
        with pytest.raises(ValueError, match=said):
            PairFiles.of("some", tmp_path, IMAGES, pairs)


def test_no_validation_and_no_training(tmp_path: Path) -> None:
    made = PairFiles.of("some", on_disk(tmp_path), IMAGES)
    none = torch.zeros(0, dtype=torch.int64)
    nothing = ImageFiles((), none, made.train.classes, tmp_path)
    assert len(dataclasses.replace(made, val=nothing).val) == 0
    with pytest.raises(ValueError, match="no image to train on"):
        dataclasses.replace(made, train=nothing)
    with pytest.raises(ValueError, match="no pair to train on"):
        PairFiles.of("some", tmp_path, [image for image in IMAGES if image.split != "train"])


def test_the_hash_is_that_of_the_lines(tmp_path: Path) -> None:
    lines = (
        '["train", "a/1.jpg", "wet", "dog"]\n["train", "a/2.jpg", "old", "cat"]\n'
        '["train", "b/é.jpg", "wet", "dog"]\n["val", "b/5.jpg", "old", "dog"]\n'
        '["test", "b/3.jpg", "wet", "cat"]\n["test", "b/4.jpg", "old", "cat"]\n'
    )
    made = PairFiles.of("some", on_disk(tmp_path), IMAGES)
    assert made.split_sha256 == hashlib.sha256(lines.encode()).hexdigest()
    assert PairFiles.of("other", on_disk(tmp_path / "x"), IMAGES).split_sha256 == made.split_sha256


def test_the_hash_tells_pairs_of_the_same_name_apart(tmp_path: Path) -> None:
    def made(attribute: str, thing: str) -> PairFiles:
        images = [PairImage("1.jpg", attribute, thing, "train")]
        return PairFiles.of("some", on_disk(tmp_path, images), images)

    first, second = made("very old", "cat"), made("very", "old cat")
    assert first.train.classes == second.train.classes
    assert first.split_sha256 != second.split_sha256


TABLE = """\
object,image,split,attribute,photographer
dog,a/1.jpg,train,wet,me
cat,a/2.jpg,train,old,me
cat,"a/3, again.jpg",test,wet,you
dog,a/4.jpg, val ,old,you
cat,a/5.jpg,test,old,you
"""


def write(folder: Path, text: str) -> Path:
    touch(folder, *(f"a/{name}.jpg" for name in ("1", "2", "3, again", "4", "5")))
    file = folder / "mine.csv"
    file.write_text(text, encoding="utf-8-sig")
    return file


def row(image: str, pair: str, split: str) -> PairImage:
    attribute, thing = pair.split()
    return PairImage(image, attribute, thing, split)  # type: ignore[arg-type]


def test_a_table(tmp_path: Path) -> None:
    made = pair_table(write(tmp_path, TABLE), tmp_path)
    assert made.name == "mine" and made.remarks == () and made.skipped == {}
    assert pair_names(made.compositions) == ("old cat", "old dog", "wet cat", "wet dog")
    assert made.compositions.seen.tolist() == [True, False, False, True]
    assert made.train.paths == ("a/1.jpg", "a/2.jpg") and made.train.labels.tolist() == [3, 0]
    assert made.test.paths == ("a/3, again.jpg", "a/5.jpg")
    assert made.test.labels.tolist() == [2, 0] and made.val.labels.tolist() == [1]
    made = pair_table(write(tmp_path, TABLE.replace("test,wet", "test,new")), tmp_path)
    assert len(made.remarks) == 1 and made.remarks[0].endswith("nothing of them is learned: new")
    with pytest.raises(FileNotFoundError, match=r"found from .*: name that folder"):
        pair_table(tmp_path / "mine.csv", tmp_path / "a").check_all()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("split,attribute", "part,state", "no column attribute, no split; .*image, part"),
        ("me\ncat", "me\n\ncat,,train,old,me\ncat", "line 4, column image: it is empty"),
        (" val ", "validation", "line 5, column split: expected .*val, test, got 'validation'"),
        ("a/5.jpg", "./a/1.jpg", "a/1.jpg is in train and in test"),
        (",train", ",val", "no row has the split train"),
        (",test", ",val", "no row has the split test"),
        (TABLE, "image,attribute,object,split\n", "names no images"),
    ],
)
def test_tables_that_are_wrong(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in TABLE
    with pytest.raises(ValueError, match=said) as caught:
        pair_table(write(tmp_path, TABLE.replace(old, new)), tmp_path)
    assert "mine.csv" in str(caught.value)


def test_remarks() -> None:
    seen = [row("1", "wet dog", "train"), row("2", "old cat", "train")]
    unseen = [row("3", "wet cat", "val"), row("4", "old dog", "test")]
    assert remarks_on([*seen, *unseen]) == ()
    assert remarks_on([*seen, row("3", "wet dog", "val"), row("4", "old cat", "test")]) == (
        "no pair of validation is unseen: training has images of all of them",
        "no pair of the test is unseen: training has images of all of them",
    )
    strange = [*unseen, row("5", "new cow", "test"), row("6", "dry cow", "test")]
    assert remarks_on([*seen, *strange]) == (
        "attributes of the test that never occur in training, so that nothing of them is learned: "
        "dry, new",
        "objects of the test that never occur in training, so that nothing of them is learned: cow",
    )
    assert remarks_on([*seen, unseen[1]]) == ("there are no images of validation",)


texts = st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), min_size=1).map(str.strip)
rows = st.builds(
    PairImage,
    *(texts.filter(bool) for _ in range(3)),
    st.sampled_from(("train", "val", "test")),
)


@settings(max_examples=20)
@given(st.lists(rows, min_size=1, max_size=8))
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, images: list) -> None:  # type: ignore[type-arg]
    file = tmp_path_factory.getbasetemp() / "in a folder" / "table.csv"
    write_pair_table(file, images)
    assert read_pairs(file) == images
