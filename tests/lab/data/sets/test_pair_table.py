"""A table of one's own: what it says, and errors by line and column."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchformer.lab.data.sets.pairs import (
    PairImage,
    pair_table,
    read_pairs,
    remarks_on,
    write_pair_table,
)

TABLE = """\
object,image,split,attribute,photographer
dog,a/1.jpg,train,wet,me
cat,a/2.jpg,train,old,me
cat,"a/3, again.jpg",test,wet,you
dog,a/4.jpg, val ,old,you
cat,a/5.jpg,test,old,you
"""


def write(folder: Path, text: str) -> Path:
    for name in ("1", "2", "3, again", "4", "5"):
        (folder / "a").mkdir(exist_ok=True)
        (folder / "a" / f"{name}.jpg").touch()
    file = folder / "mine.csv"
    file.write_text(text, encoding="utf-8-sig")
    return file


def row(image: str, pair: str, split: str) -> PairImage:
    attribute, thing = pair.split()
    return PairImage(image, attribute, thing, split)  # type: ignore[arg-type]


def test_a_table(tmp_path: Path) -> None:
    made = pair_table(write(tmp_path, TABLE), tmp_path)
    assert made.name == "mine" and made.remarks == () and made.skipped == {}
    assert made.compositions.names == (
        ("old", "cat"),
        ("old", "dog"),
        ("wet", "cat"),
        ("wet", "dog"),
    )
    assert made.compositions.seen.tolist() == [True, False, False, True]
    assert made.train.paths == ("a/1.jpg", "a/2.jpg") and made.train.labels.tolist() == [3, 0]
    assert made.test.paths == ("a/3, again.jpg", "a/5.jpg")
    assert made.test.labels.tolist() == [2, 0] and made.val.labels.tolist() == [1]
    assert pair_table(tmp_path / "mine.csv", tmp_path, "zoo").name == "zoo"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("split,attribute", "part,attribute", "line 1: there is no column split; .*image, part"),
        ("split,attribute", "part,state", "no column attribute, no split"),
        ("cat,a/2.jpg", ",a/2.jpg", "line 3, column object: it is empty"),
        ("cat,a/2.jpg,train,old,me", "cat,a/2.jpg", "line 3, column attribute: it is empty"),
        ("me\ncat", "me\n\ncat,,train,old,me\ncat", "line 4, column image: it is empty"),
        ('"a/3, again.jpg"', "a/3, again.jpg", "line 4: more values than columns"),
        (" val ", "validation", "line 5, column split: expected .*val, test, got 'validation'"),
        ("a/5.jpg", "a/1.jpg", "a/1.jpg is in train and in test"),
        (",train", ",val", "no row has the split train"),
        (",test", ",val", "no row has the split test"),
    ],
)
def test_errors(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in TABLE
    with pytest.raises(ValueError, match=said) as caught:
        pair_table(write(tmp_path, TABLE.replace(old, new)), tmp_path)
    assert "mine.csv" in str(caught.value)


@pytest.mark.parametrize("text", ["", "image,attribute,object,split\n"])
def test_an_empty_table(tmp_path: Path, text: str) -> None:
    with pytest.raises(ValueError, match=r"no column image.*none|names no images"):
        pair_table(write(tmp_path, text), tmp_path)


def test_a_wrong_root(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"found from .*: name that folder"):
        pair_table(write(tmp_path, TABLE), tmp_path / "a")


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
        "2 attributes of the test never occur in training, so that nothing of them is learned: "
        "dry, new",
        "1 object of the test never occurs in training, so that nothing of it is learned: cow",
    )
    assert remarks_on([*seen, unseen[1]]) == ("there are no images of validation",)


def test_remarks_reach_the_data(tmp_path: Path) -> None:
    made = pair_table(write(tmp_path, TABLE.replace("test,wet", "test,new")), tmp_path)
    assert made.remarks == (
        "1 attribute of the test never occurs in training, so that nothing of it is learned: new",
    )


texts = st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), min_size=1).map(str.strip)
rows = st.builds(
    PairImage,
    *(texts.filter(bool) for _ in range(3)),
    st.sampled_from(("train", "val", "test")),
)


@given(st.lists(rows, min_size=1))
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, images: list) -> None:  # type: ignore[type-arg]
    file = tmp_path_factory.mktemp("table") / "t.csv"
    write_pair_table(file, images)
    assert read_pairs(file) == images
