"""Where lists are looked for, and what is said where they are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from batchformer.lab.data.sets.annotated import ANNOTATED, ensure_present, lists_of, present

#: Training images, classes, most, fewest and test images, from the papers of the data sets.
KNOWN = {
    "imagenet_lt": (115_846, 1000, 1280, 5, 50_000),
    "inaturalist18": (437_513, 8142, 1000, 2, 24_426),
    "places_lt": (62_500, 365, 4980, 5, 36_500),
}


def test_what_is_known_of_the_data_sets() -> None:
    found = {n: (k.images, k.classes, k.most, k.fewest, k.tested) for n, k in ANNOTATED.items()}
    assert found == KNOWN


def test_a_folder_of_the_name_comes_before_the_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATCHFORMER_DATA", str(tmp_path))
    assert lists_of("places_lt").root == tmp_path
    (tmp_path / "places_lt").mkdir()
    found = lists_of("places_lt")
    assert found.root == tmp_path / "places_lt"
    assert found.test == tmp_path / "places_lt/Places_LT_test.txt"
    assert lists_of("places_lt", part="val").test.name == "Places_LT_val.txt"
    assert lists_of("places_lt", tmp_path / "places_lt").root == tmp_path / "places_lt"


def test_lists_in_another_place(tmp_path: Path) -> None:
    other = lists_of("imagenet_lt", tmp_path, "~/train.txt", str(tmp_path / "test.txt"))
    assert other.root == tmp_path and other.test == tmp_path / "test.txt"
    assert other.train == Path.home() / "train.txt"


def test_missing_lists_are_named_with_what_to_do(tmp_path: Path) -> None:
    lists = lists_of("imagenet_lt", tmp_path)
    (tmp_path / "ImageNet_LT_test.txt").touch()
    assert not present(lists)
    with pytest.raises(FileNotFoundError) as caught:
        ensure_present("imagenet_lt", lists)
    words = str(caught.value)
    assert f"there is no {tmp_path}/ImageNet_LT_train.txt.\n" in words
    for said in ("image-net.org", "--data.root", "BATCHFORMER_DATA", "--data.train-list"):
        assert said in words
    (tmp_path / "ImageNet_LT_train.txt").touch()
    ensure_present("imagenet_lt", lists)
    assert present(lists)


def test_published_annotations_serve_where_there_is_no_list(tmp_path: Path) -> None:
    for name in ("train2018.json", "val2018.json", "iNaturalist18_val.txt"):
        (tmp_path / name).touch()
    found = lists_of("inaturalist18", tmp_path)
    assert (found.train.name, found.test.name) == ("train2018.json", "iNaturalist18_val.txt")
    assert lists_of("inaturalist18", tmp_path / "none").train.name == "iNaturalist18_train.txt"
