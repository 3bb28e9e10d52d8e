"""Known sets in their published layout: lists, forms of paths, and metadata that runs nothing."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from batchformer.lab.data.sets.known_pairs import (
    CONVERTED,
    METADATA,
    ensure_present,
    load_pairs,
    metadata_to_csv,
    place_of,
    read_metadata,
    read_pair_list,
)
from batchformer.lab.data.sets.pairs import pair_table, read_pairs
from helpers.data_files import touch

#: Attributes, objects, seen pairs, unseen pairs, and the folder as published.
SIZES = {
    "ut_zappos": (16, 12, 83, 33, "ut-zap50k"),
    "mit_states": (115, 245, 1262, 9, "mit-states"),
}
Entry = dict[str, str]
Path_of = Callable[[Entry], str]


def make_lists(place: Path, name: str) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Lists of the published size: seen pairs go round both words, so that all of them occur."""
    attributes, objects, seen, unseen, _ = SIZES[name]
    turns = [(f"A.{n % attributes}", f"o-{n % objects}") for n in range(max(attributes, objects))]
    every = [(f"A.{a}", f"o-{o}") for a, o in product(range(attributes), range(objects))]
    pairs = list(dict.fromkeys([*turns, *every]))[: seen + unseen]
    trained, rest = pairs[:seen], pairs[seen:]
    folder = place / "compositional-split-natural"
    folder.mkdir(parents=True)
    half = len(rest) // 2
    for part, own in {
        "train": trained,
        "val": [*trained[:3], *rest[:half]],
        "test": [*trained[2:5], *rest[half:]],
    }.items():
        (folder / f"{part}_pairs.txt").write_text("".join(f"{a} {o}\n" for a, o in own))
    return trained, rest


def entry(image: str, pair: tuple[str, str], part: str) -> Entry:
    return {"image": image, "attr": pair[0], "obj": pair[1], "set": part, "_image": "old/x.jpg"}


def make(
    root: Path, name: str, on_disk: Path_of = lambda own: own["image"], space: str = " "
) -> tuple[Path, list[Entry]]:
    """A small set in the published layout; empty files stand for the images."""
    place = root / SIZES[name][-1]
    trained, rest = make_lists(place, name)
    kept = [
        *(entry(f"{p[0]}{space}{p[1]}/{n} 1.jpg", p, "train") for n, p in enumerate(trained[:70])),
        entry(f"v{space}w/a b.jpg", trained[0], "val"),
        entry(f"v{space}w/b.jpg", rest[0], "val"),
        entry(f"v{space}w/c.jpg", rest[-1], "test"),
    ]
    left_out = [
        entry("none/1.jpg", ("NA", trained[0][1]), "train"),
        entry("none/2.jpg", ("NA", trained[0][1]), "NA"),
        entry("none/3.jpg", trained[0], "NA"),
        entry("none/4.jpg", ("unheard", "of"), "test"),
    ]
    touch(place / "images", *map(on_disk, kept))
    torch.save([left_out[0], *kept, *left_out[1:]], place / METADATA)
    return place, kept


def paths(files: Any) -> list[str]:
    return [path for phase in ("train", "val", "test") for path in files.part(phase).paths]


@pytest.mark.parametrize("name", SIZES)
def test_the_published_layout(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCHFORMER_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError):
        ensure_present(name)
    place, kept = make(tmp_path, name)
    assert place_of(name) == place_of(name, tmp_path) == place_of(name, place) == place
    found = load_pairs(name)
    attributes, objects, seen, unseen, _ = SIZES[name]
    pairs = found.compositions
    assert (len(pairs.attributes), len(pairs.objects)) == (attributes, objects)
    assert (int(pairs.seen.sum()), len(pairs)) == (seen, seen + unseen)
    assert not (pairs.val & pairs.test & ~pairs.seen).any()
    assert paths(found) == [own["image"] for own in kept]
    names = pairs.names
    shown = [names[n] for phase in ("train", "val", "test") for n in found.part(phase).labels]
    assert shown == [(own["attr"], own["obj"]) for own in kept]
    assert found.sizes == {"train": 70, "val": 2, "test": 1}
    assert found.skipped == {"attribute NA": 2, "set NA": 1, "pair in no list": 1}
    assert found.train.root == place / "images"
    found.check_all()


def with_underscores(own: Entry) -> str:
    folder, file = own["image"].split("/")
    return f"{folder.replace(' ', '_')}/{file}"


def by_pair(between: str) -> Path_of:
    return lambda own: f"{own['attr']}{between}{own['obj']}/{own['image'].split('/')[1]}"


@pytest.mark.parametrize(
    ("moved", "space"), [(with_underscores, " "), (by_pair("_"), "+"), (by_pair(" "), "+")]
)
def test_scripts_rename_folders_and_not_files(tmp_path: Path, moved: Path_of, space: str) -> None:
    place, kept = make(tmp_path, "ut_zappos", moved, space)
    expected = [moved(own) for own in kept]
    assert paths(load_pairs("ut_zappos", tmp_path)) == expected and " 1.jpg" in expected[0]
    for folder, written in ((None, [own["image"] for own in kept]), (place / "images", expected)):
        metadata_to_csv(place / METADATA, tmp_path / "own.csv", folder)
        assert [image.image for image in read_pairs(tmp_path / "own.csv")][:-1] == written


def test_one_form_is_taken_for_all(tmp_path: Path) -> None:
    place, kept = make(tmp_path, "ut_zappos")
    other = place / "images" / kept[0]["image"].replace(" ", "_", 1)
    other.parent.mkdir()
    (place / "images" / kept[0]["image"]).rename(other)
    with pytest.raises(FileNotFoundError, match=r"1 of 70 .* not in .*images:\n  A.0 o-0/0 1"):
        load_pairs("ut_zappos", tmp_path).check_all()


def test_the_forms_that_were_tried_are_told(tmp_path: Path) -> None:
    make(tmp_path, "ut_zappos", lambda own: f"elsewhere/{own['image']}")
    images, table = tmp_path / "ut-zap50k/images", tmp_path / "own.csv"
    with pytest.raises(FileNotFoundError) as caught:
        load_pairs("ut_zappos", tmp_path)
    for said in (
        f"none of the 73 images looked for (out of 73) is in {images}",
        "  A.0 o-0/0 1.jpg (as written)\n",
        "  A.0_o-0/0 1.jpg (underscores for the spaces of the folder)\n",
        "  A.0_o-0/0 1.jpg (in a folder attribute_object)\n",
    ):
        assert said in str(caught.value)
    with pytest.raises(FileNotFoundError, match="none of the 74 images looked for"):
        metadata_to_csv(images.parent / METADATA, table, images)
    assert not table.exists()


def test_what_is_missing_is_described(tmp_path: Path) -> None:
    place, _ = make(tmp_path, "ut_zappos")
    (place / METADATA).unlink()
    (place / "compositional-split-natural/val_pairs.txt").unlink()
    (place / "images").rename(place / "pictures")
    said = rf"no compositional-split-natural/val_pairs.txt, no {METADATA}, no folder images\.\n"
    words = rf"UT-Zappos not found: looked in {place}, and there is {said}.*\n.*folder ut-zap50k"
    with pytest.raises(FileNotFoundError, match=words):
        ensure_present("ut_zappos", tmp_path)


def test_other_pairs_are_refused(tmp_path: Path) -> None:
    place, _ = make(tmp_path, "ut_zappos")
    with (place / "compositional-split-natural/test_pairs.txt").open("a") as file:
        file.write("A.0 slipper\n")
    with pytest.raises(ValueError, match=r"UT-Zappos .*: 13 objects instead of 12, 117 pairs inst"):
        load_pairs("ut_zappos", tmp_path)


def test_the_second_release_of_c_gqa_is_explained(tmp_path: Path) -> None:
    place, _ = make(tmp_path, "ut_zappos")
    place.rename(tmp_path / "C-GQA")
    with pytest.raises(ValueError, match=r"453.* 870.* 6963\. C-GQA was released again.*convert-p"):
        load_pairs("c_gqa", tmp_path)


def test_lists(tmp_path: Path) -> None:
    file = tmp_path / "train_pairs.txt"
    file.write_text("Faux.Fur Boots.Mid-Calf\r\n\n  wet   dog\n", encoding="utf-8-sig")
    assert read_pair_list(file) == [("Faux.Fur", "Boots.Mid-Calf"), ("wet", "dog")]
    for bad in ("wet", "very wet dog"):
        file.write_text(f"old cat\n{bad}\n")
        with pytest.raises(ValueError, match=f"train_pairs.txt, line 2: .* got '{bad}'"):
            read_pair_list(file)


def test_a_table_in_the_place_of_the_metadata(tmp_path: Path) -> None:
    place, _ = make(tmp_path, "ut_zappos")
    first = load_pairs("ut_zappos", tmp_path)
    written, skipped = metadata_to_csv(place / METADATA, place / CONVERTED)
    assert written == 74 and skipped == {"attribute NA": 2, "set NA": 1}
    (place / METADATA).unlink()
    second = load_pairs("ut_zappos", tmp_path)
    assert second.split_sha256 == first.split_sha256
    assert second.skipped == {"pair in no list": 1}
    touch(place, "images/none/4.jpg")
    own = pair_table(place / CONVERTED, place / "images")
    assert own.sizes == {"train": 70, "val": 2, "test": 2}


class Runs:
    """An object whose reading runs a command, as harmful files do."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (str(self.file),)


@pytest.mark.parametrize("new_format", [True, False])
def test_nothing_in_the_metadata_is_run(tmp_path: Path, new_format: bool) -> None:
    entries = [entry("1.jpg", ("wet", "dog"), "train")]
    file, trace = tmp_path / "m.t7", tmp_path / "trace"
    torch.save(entries, file, _use_new_zipfile_serialization=new_format)
    assert read_metadata(file)[0] == [("1.jpg", "wet", "dog", "train")]
    harmful: Sequence[Any] = [{**entries[0], "image": Runs(trace)}]
    torch.save(harmful, file, _use_new_zipfile_serialization=new_format)
    with pytest.raises(ValueError, match=r"m.t7 holds more .*\.mkdir\..*convert-pairs"):
        read_metadata(file)
    with pytest.raises(FileNotFoundError):
        read_metadata(tmp_path / "none.t7")
    assert not trace.exists()


def test_damaged_metadata(tmp_path: Path) -> None:
    for content in (b"", b"no such file", b"PK\3\4 cut", pickle.dumps(["x"], protocol=2)[:5]):
        (tmp_path / "m.t7").write_bytes(content)
        with pytest.raises(ValueError, match=r"m\.t7 cannot be read: it is damaged"):
            read_metadata(tmp_path / "m.t7")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"image": "1.jpg"}, "expected a list of dicts, got a dict"),
        ([entry("1.jpg", ("a", "o"), "val"), "2.jpg"], "entry 1 .* got '2.jpg'"),
        ([{"image": "1.jpg", "attr": "a", "set": "val"}], "entry 0 .*image, attr, obj, set"),
        ([{**entry("1.jpg", ("a", "o"), "val"), "obj": 3}], "entry 0 .*'obj': 3"),
        ([entry("1.jpg", ("a", "o"), "dev")], "entry 0 .*train, val, test or NA, got 'dev'"),
    ],
)
def test_metadata_of_other_kinds(tmp_path: Path, content: object, said: str) -> None:
    torch.save(content, tmp_path / "m.t7")
    with pytest.raises(ValueError, match=said):
        read_metadata(tmp_path / "m.t7")
