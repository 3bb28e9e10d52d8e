"""Images of pairs in three parts: labels, checks and the hash."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from batchformer.lab.data.files.image_files import ImageFiles
from batchformer.lab.data.sets.pairs import Compositions, PairFiles, PairImage, pair_names

IMAGES = [
    PairImage("a/1.jpg", "wet", "dog", "train"),
    PairImage("a/2.jpg", "old", "cat", "train"),
    PairImage("b/3.jpg", "wet", "cat", "test"),
    PairImage("b/4.jpg", "old", "cat", "test"),
    PairImage("b/5.jpg", "old", "dog", "val"),
    PairImage("b/é.jpg", "wet", "dog", "train"),
]


def on_disk(root: Path, images: Sequence[PairImage] = IMAGES) -> Path:
    """An empty file stands for each image."""
    for image in images:
        (root / image.image).parent.mkdir(parents=True, exist_ok=True)
        (root / image.image).touch()
    return root


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
    ):
        pairs = Compositions.of(train, [("wet", "cat")], [("old", "cat"), ("old", "dog")])
        with pytest.raises(ValueError, match=said):
            PairFiles.of("some", tmp_path, IMAGES, pairs)


def test_a_seen_pair_may_be_validated_though_no_list_says_so(tmp_path: Path) -> None:
    images = [PairImage("1.jpg", "wet", "dog", "train"), PairImage("2.jpg", "wet", "dog", "val")]
    pairs = Compositions.of([("wet", "dog")], [], [])
    assert len(PairFiles.of("some", on_disk(tmp_path, images), images, pairs).val) == 1


def test_other_classes_and_no_training(tmp_path: Path) -> None:
    made = PairFiles.of("some", on_disk(tmp_path), IMAGES)
    other = ImageFiles((), torch.zeros(0, dtype=torch.int64), ("wet dog",), tmp_path)
    with pytest.raises(ValueError, match="classes of val are not the 4 pairs"):
        dataclasses.replace(made, val=other)
    nothing = dataclasses.replace(other, classes=made.train.classes)
    assert len(dataclasses.replace(made, val=nothing).val) == 0
    with pytest.raises(ValueError, match="no image to train on"):
        dataclasses.replace(made, train=nothing)
    with pytest.raises(ValueError, match="no image to train on"):
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


def test_every_file_is_looked_for(tmp_path: Path) -> None:
    images = [PairImage(f"{n:03}.jpg", "wet", "dog", "train") for n in range(200)]
    made = PairFiles.of("some", on_disk(tmp_path, images), images)
    made.check_all()
    (tmp_path / "001.jpg").unlink()  # not one of those that are looked for at once
    made = PairFiles.of("some", tmp_path, images)
    with pytest.raises(FileNotFoundError, match=r"1 of 200 images .*\n  001.jpg"):
        made.check_all()
