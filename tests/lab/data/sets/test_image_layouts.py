"""Where published images are looked for, without opening them, and what is said if they lack."""

from __future__ import annotations

from pathlib import Path

import pytest

from batchformer.lab.data.files.location import looked_in, match_name
from batchformer.lab.data.sets.image_layouts import (
    ANNOTATED,
    coco_folder,
    ensure_imagenet,
    ensure_lists,
    find_cifar,
    imagenet_folder,
    lists_of,
    voc_folder,
)
from helpers.data_files import touch


def test_the_order_of_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCHFORMER_DATA", str(tmp_path))
    assert looked_in() == tmp_path and looked_in(Path("~/x")) == Path.home() / "x"
    monkeypatch.delenv("BATCHFORMER_DATA")
    assert looked_in() == Path.home() / ".cache/batchformer"


def test_letters_and_digits_count_and_the_first_usual_name_comes_first() -> None:
    for spelling in ("Real World", "Real_World", "RealWorld", "real-world"):
        assert match_name(["Art", spelling, "Realm"], ["Real World"]) == spelling
    assert match_name(["real_world", "Real World"], ["Real World"]) == "Real World"
    assert match_name(["SUN", "sun09"], ["SUN09", "SUN"]) == "sun09"
    assert match_name(["sun10"], ["SUN09", "SUN"]) is None


def test_official_files_of_cifar_must_be_complete_and_come_before_an_npz(tmp_path: Path) -> None:
    folder, npz = tmp_path / "cifar-100-python", tmp_path / "cifar100_lt.npz"
    touch(folder, "train", "test")
    assert find_cifar("cifar100", tmp_path) is find_cifar("cifar100", npz) is None
    npz.touch()
    assert find_cifar("cifar100", npz) == npz == find_cifar("cifar100", tmp_path)
    touch(folder, "meta")
    assert find_cifar("cifar100", tmp_path) == folder == find_cifar("cifar100", folder)
    assert find_cifar("cifar10", tmp_path) is None


def test_what_is_known_of_the_listed_sets() -> None:
    """Training images, classes, most, fewest and test images, from the papers of the data sets."""
    for name, numbers in {
        "imagenet_lt": (115_846, 1000, 1280, 5, 50_000),
        "inaturalist18": (437_513, 8142, 1000, 2, 24_426),
        "places_lt": (62_500, 365, 4980, 5, 36_500),
    }.items():
        k = ANNOTATED[name]
        assert (k.images, k.classes, k.most, k.fewest, k.tested) == numbers


def test_a_folder_of_the_name_comes_before_the_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATCHFORMER_DATA", str(tmp_path))
    for name, folder in (
        ("imagenet", imagenet_folder),
        ("VOCdevkit", voc_folder),
        ("coco", coco_folder),
    ):
        assert folder(None) == folder(str(tmp_path)) == tmp_path
        (tmp_path / name).mkdir()
        assert folder(None) == folder(str(tmp_path)) == tmp_path / name
        assert folder(str(tmp_path / name)) == tmp_path / name
    assert lists_of("places_lt").root == tmp_path
    (tmp_path / "places_lt").mkdir()
    found = lists_of("places_lt")
    assert found.root == tmp_path / "places_lt"
    assert found.test == tmp_path / "places_lt/Places_LT_test.txt"
    assert lists_of("places_lt", part="val").test.name == "Places_LT_val.txt"
    assert lists_of("places_lt", tmp_path / "places_lt").root == tmp_path / "places_lt"
    other = lists_of("imagenet_lt", tmp_path, "~/train.txt", str(tmp_path / "test.txt"))
    assert other.root == tmp_path and other.test == tmp_path / "test.txt"
    assert other.train == Path.home() / "train.txt"


def test_missing_lists_are_named_with_what_to_do(tmp_path: Path) -> None:
    lists = lists_of("imagenet_lt", tmp_path)
    touch(tmp_path, "ImageNet_LT_test.txt")
    words = (
        rf"there is no {tmp_path}/ImageNet_LT_train.txt\.\n.*\n.*image-net.org.*--data.train-list"
    )
    with pytest.raises(FileNotFoundError, match=words):
        ensure_lists("imagenet_lt", lists)
    touch(tmp_path, "ImageNet_LT_train.txt")
    ensure_lists("imagenet_lt", lists)


def test_published_annotations_serve_where_there_is_no_list(tmp_path: Path) -> None:
    touch(tmp_path, "train2018.json", "val2018.json", "iNaturalist18_val.txt")
    found = lists_of("inaturalist18", tmp_path)
    assert (found.train.name, found.test.name) == ("train2018.json", "iNaturalist18_val.txt")
    assert lists_of("inaturalist18", tmp_path / "none").train.name == "iNaturalist18_train.txt"


def test_both_parts_of_imagenet_need_a_class(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="and train and val is missing"):
        ensure_imagenet(str(tmp_path))
    touch(tmp_path, "train/n01440764/1.JPEG", "val/ILSVRC2012_val_00000001.JPEG")  # not in classes
    with pytest.raises(FileNotFoundError, match=rf"{tmp_path}, and val is missing or has no class"):
        ensure_imagenet(str(tmp_path))
