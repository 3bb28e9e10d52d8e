"""Known sets are found in their usual layouts, and missing ones are described."""

from __future__ import annotations

from pathlib import Path

import pytest

from batchformer.lab.data.sets.domain_layouts import (
    ensure_present,
    load_domains,
    place_of,
)
from helpers.data_files import one_of_each, touch

TERRA = [
    *("bird", "bobcat", "cat", "coyote", "dog"),
    *("empty", "opossum", "rabbit", "raccoon", "squirrel"),
]
#: Number of classes, folder as published, and the folder of each domain as published.
PUBLISHED = {
    "pacs": (7, "PACS", {d: d for d in ("art_painting", "cartoon", "photo", "sketch")}),
    "vlcs": (5, "VLCS", {d.lower(): d for d in ("Caltech101", "LabelMe", "SUN09", "VOC2007")}),
    "office_home": (
        65,
        "office_home",
        {"art": "Art", "clipart": "Clipart", "product": "Product", "real_world": "Real World"},
    ),
    "terra_incognita": (
        10,
        "terra_incognita",
        {f"l{number}": f"location_{number}" for number in (100, 38, 43, 46)},
    ),
    "visda": (12, "visda-2017", {"real": "validation", "synthetic": "train"}),
}


def class_names(name: str) -> list[str]:
    return TERRA if name == "terra_incognita" else [f"c{n:02}" for n in range(PUBLISHED[name][0])]


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_published_layout(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    classes, folder, domains = PUBLISHED[name]
    monkeypatch.setenv("BATCHFORMER_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError):
        ensure_present(name)
    one_of_each(tmp_path / folder, list(domains.values()), class_names(name))
    touch(tmp_path / folder, "image_list/readme", "test/other/1.jpg")
    for place in (None, tmp_path, tmp_path / folder):
        found = load_domains(name, place)
        assert found.parts[0].root == tmp_path / folder
    assert found.domains == tuple(sorted(domains)) and found.classes == tuple(class_names(name))
    assert found.counts.tolist() == [[1] * classes] * len(domains)
    for domain, part in zip(found.domains, found.parts, strict=True):
        assert part.paths[0] == f"{domains[domain]}/{class_names(name)[0]}/1.jpg"


def test_other_spellings(tmp_path: Path) -> None:
    one_of_each(
        tmp_path / "OfficeHome", ("Art", "Clipart", "Product", "Real_World"), class_names("pacs")
    )
    assert place_of("office_home", tmp_path) == tmp_path / "OfficeHome"
    ensure_present("office_home", tmp_path)
    with pytest.raises(ValueError, match=r"not OfficeHome .* has 7 classes, instead of 65"):
        load_domains("office_home", tmp_path)


def test_a_missing_domain_is_described(tmp_path: Path) -> None:
    one_of_each(tmp_path / "PACS", ("art_painting", "photo", "sketch"), class_names("pacs"))
    words = r"no folder of cartoon\.\n.*cartoon/<class>.*7 classes.*\n.*--data.root .*folder PACS"
    with pytest.raises(FileNotFoundError, match=rf"in {tmp_path}/PACS, and there is {words}"):
        ensure_present("pacs", tmp_path)


def test_classes_that_are_not_used_are_named(tmp_path: Path) -> None:
    _, folder, domains = PUBLISHED["terra_incognita"]
    one_of_each(tmp_path / folder, list(domains.values()), [*TERRA[1:], "fox"])
    with pytest.raises(ValueError, match="10 classes, among them fox, instead of bird, bobcat"):
        load_domains("terra_incognita", tmp_path)


def pacs_lists(place: Path, lists: dict[str, slice]) -> None:
    """Lists of slices of each domain's classes, with labels from 1 and in reversed order."""
    domains = PUBLISHED["pacs"][2]
    one_of_each(place, list(domains), class_names("pacs"))
    (place / "image_list").mkdir()
    for domain in domains:
        lines = [f"{domain}/{own}/1.jpg {7 - n}" for n, own in enumerate(class_names("pacs"))]
        for ending, part in lists.items():
            file = place / "image_list" / f"{domain}{ending}.txt"
            file.write_text("\n".join(lines[part]))


@pytest.mark.parametrize(
    "lists",
    [
        {"": slice(6), "_train": slice(7)},
        {"_train": slice(4), "_val": slice(4, 6)},
        {"_train": slice(4), "_test": slice(2, 6)},
        {"_train_kfold": slice(4), "_crossval_kfold": slice(4, 5), "_test_kfold": slice(6)},
    ],
)
def test_lists_are_taken_where_they_are_wanted(tmp_path: Path, lists: dict[str, slice]) -> None:
    pacs_lists(tmp_path, lists)
    # The last class would have the label 1, without which labels would seem to begin at 0.
    photo = next((tmp_path / "image_list").glob(f"photo{next(iter(lists))}.txt"))
    photo.write_text(f"{photo.read_text()}\nphoto/c06/1.jpg 1")
    found = load_domains("pacs", tmp_path, lists=True)
    assert found.classes == tuple(reversed(class_names("pacs")))
    assert found.sizes == {"art_painting": 6, "cartoon": 6, "photo": 7, "sketch": 6}
    assert found.parts[0].labels.tolist() == [6, 5, 4, 3, 2, 1]
    by_folders = load_domains("pacs", tmp_path)
    assert by_folders.classes == tuple(class_names("pacs")) and by_folders.sizes["cartoon"] == 7


def test_a_tree_of_ones_own(tmp_path: Path) -> None:
    one_of_each(tmp_path / "mine", ("day", "night"), ("car", "bus"))
    found = load_domains("tree", tmp_path / "mine")
    assert found.domains == ("day", "night") and found.classes == ("bus", "car")
    for place, words in (
        (None, r"Whose images\? .* --data.root"),
        (tmp_path / "none", r"none is not a folder.*<domain>/<class>"),
    ):
        with pytest.raises(FileNotFoundError, match=words):
            load_domains("tree", place)
    with pytest.raises(ValueError, match="lists are for the known sets"):
        load_domains("tree", tmp_path / "mine", lists=True)
